# What every figure shares. A figure takes its arguments (DATA = ARG1, OUT = ARG2, SUBJECT = ARG3),
# sets its HEADING and its size W x H in points, and loads this file.
#
#   gnuplot -c FIGURE.gp DATA.tsv OUT.svg|OUT.png [SUBJECT]
#
# Only the heading has mark-up (bold): what comes from the data is set `noenhanced`, or escaped, so
# that names may hold any character but a tab, a line end and a double quote.

set encoding utf8
set datafile separator "\t"
set datafile missing "NaN"

suffix = strlen(OUT) > 4 ? OUT[strlen(OUT) - 3 : strlen(OUT)] : ""
if (suffix eq ".png") {
    set terminal pngcairo enhanced size 2 * W, 2 * H font "Arial,11" fontscale 2 \
        linewidth 2 pointscale 2 dashlength 1.2 background rgb "white"
} else {
    if (suffix eq ".svg") {
        set terminal svg enhanced size W, H font "Arial,11" fontscale 1.25 \
            dashlength 1.2 background rgb "white"
    } else {
        exit error sprintf("%s: a figure's name ends in .svg or .png", OUT)
    }
}
set output OUT

# Okabe and Ito's colours, told apart with any kind of colour vision.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#F0E442"
BLACK = "#000000"
INK = "#262626"
GREY = "#767676"
PALE = "#D9D9D9"
FAINT = "#ECECEC"

set linetype 1 lc rgb BLUE lw 2 pt 7 ps 0.6 dt 1
set linetype 2 lc rgb VERMILION lw 2 pt 5 ps 0.6 dt 1
set linetype 3 lc rgb GREEN lw 2 pt 9 ps 0.7 dt 1
set linetype 4 lc rgb PURPLE lw 2 pt 13 ps 0.7 dt 1
set linetype 5 lc rgb ORANGE lw 2 pt 11 ps 0.7 dt 1
set linetype 6 lc rgb SKY lw 2 pt 65 ps 0.7 dt 1
set linetype 7 lc rgb BLACK lw 2 pt 64 ps 0.7 dt 1
set linetype 8 lc rgb GREY lw 2 pt 66 ps 0.7 dt 1
set linetype cycle 8

set border 3 lc rgb GREY lw 0.8
set tics nomirror out scale 0.5, 0.25 noenhanced textcolor rgb INK
set grid ytics lt -1 lc rgb FAINT lw 0.8 dt 1
set grid noxtics nomytics nomxtics
set grid back
set key opaque noenhanced textcolor rgb INK Left reverse samplen 2 spacing 1.15

# The figure's heading, and what it is of.
plain = ""
escaped(s) = (plain = "", sum [i = 1 : strlen(s)] \
    (plain = plain.(strstrt("{}^_@&~\\", s[i : i]) > 0 ? "\\" : "").s[i : i], 0), plain)
set label 1001 sprintf("{/:Bold %s}", escaped(HEADING)) at screen 16.0 / W, \
    screen 1 - 20.0 / H left font "Arial,13" tc rgb INK
set label 1002 SUBJECT at screen 16.0 / W, screen 1 - 40.0 / H left noenhanced font "Arial,10" \
    tc rgb GREY

# A number as people write it: three significant digits, no exponent in the usual range.
short(x) = x >= 1000 ? sprintf("%.0f", x) : sprintf("%.3g", x)
seconds(x) = x >= 120 ? sprintf("%s min", short(x / 60)) : \
    x >= 1 ? sprintf("%s s", short(x)) : sprintf("%s ms", short(1000 * x))
# The smaller and the larger, where NaN is no number.
known(x) = x == x
# A column's number, or NaN; $n would drop the whole row where it is unknown.
number(k) = valid(k) ? column(k) : NaN
least(a, b) = !known(a) ? b : !known(b) ? a : a < b ? a : b
most(a, b) = !known(a) ? b : !known(b) ? a : a > b ? a : b

# A command for `eval` that sets the marks of a logarithmic axis ("x" or "y"): 1, 2 and 5 of each
# decade while there are few decades, else the decades alone.
marks = ""
mark(v, low, high) = v >= low && v <= high ? \
    (marks = marks.(marks eq "" ? "" : ", ").sprintf("%g", v), 0) : 0
log_marks(axis, low, high) = high > 1500 * low ? sprintf("set %stics autofreq", axis) : \
    (marks = "", sum [e = -9 : 9] (mark(10.0 ** e, low, high) + mark(2 * 10.0 ** e, low, high) + \
                                   mark(5 * 10.0 ** e, low, high)), \
     sprintf("set %stics (%s)", axis, marks))

# The step between marks of a linear axis that ends at `high` > 0, for about three of them; 1 or
# more when `whole`.
round_step(r) = r < 1.5 ? 1 : r < 3.5 ? 2 : r < 7.5 ? 5 : 10
decade(x) = 10.0 ** floor(log10(x))
near_step(x) = decade(x) * round_step(x / decade(x))
mark_step(high, whole) = most(whole ? 1 : 0, near_step(high / 3.0))
