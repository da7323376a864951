# Latency against arrival rate: a curve for each SLO statistic, its limit, and the knee, which is
# the highest rate that holds every SLO.
#
# Data: a block (two empty lines between) for each statistic, rows in order of rate:
#   statistic  rate_req_per_s  latency_s  limit_s  holds (1: every SLO)  bottleneck

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "Latency against arrival rate"
W = 860
H = 520
load ARG0[1 : strlen(ARG0) - strlen("rate.gp")]."style.gp"

stats DATA using 2 nooutput name "R"
N = R_blocks
array NAME[N]
array LIMIT[N]
y_low = NaN
y_high = NaN
knee = 0
do for [i = 1 : N] {
    stats DATA index i - 1 using \
        (NAME[i] = strcol(1), LIMIT[i] = number(4), \
         y_low = least(y_low, least(number(3), number(4))), \
         y_high = most(y_high, most(number(3), number(4))), \
         knee = $5 > 0 ? most(knee, $2) : knee, $2) nooutput
}
broken = NaN
why = ""
stats DATA index 0 using \
    ($2 > knee && !known(broken) ? (broken = $2, why = strcol(6), $2) : $2) nooutput

set lmargin at screen 72.0 / W
set rmargin at screen 1 - 24.0 / W
set tmargin at screen 1 - 84.0 / H
set bmargin at screen 58.0 / H
set xlabel "arrival rate (requests/s)" tc rgb INK
set ylabel "latency (s)" tc rgb INK offset 1, 0
if (y_high > 20 * y_low) {
    set logscale y
    set yrange [y_low / 1.6 : y_high * 1.6]
    eval log_marks("y", y_low / 1.6, y_high * 1.6)
} else {
    set yrange [0 : y_high * 1.12]
}
if (R_max > 50 * R_min) {
    set logscale x
    set xrange [R_min / 1.15 : R_max * 1.15]
    eval log_marks("x", R_min / 1.15, R_max * 1.15)
} else {
    set xrange [0 : R_max * 1.04]
}
set key at graph 0, screen 1 - 64.0 / H left center horizontal maxrows 1

# What lies past the knee, and the gap up to the first rate that was seen to break. Notes stand on
# the side where they belong; near the edge of the figure on the other, a line lower.
place(x) = R_max > 50 * R_min ? log(1.15 * x / R_min) / log(1.3225 * R_max / R_min) : x / R_max
if (known(broken)) {
    set object 1 rectangle from first broken, graph 0 to graph 1, graph 1 behind \
        fc rgb VERMILION fs transparent solid 0.07 noborder
    set label 2 sprintf("breaks: %s", why) noenhanced font "Arial,10" tc rgb VERMILION
    if (place(broken) < 0.78) {
        set label 2 at first broken, graph 0.965 left offset 0.6, 0
    } else {
        set label 2 at first (knee > 0 ? knee : broken), graph 0.915 right offset -0.6, 0
    }
}
if (knee > 0) {
    set arrow 1 from first knee, graph 0 to first knee, graph 1 nohead lc rgb INK lw 1 dt (4, 3)
    set label 1 sprintf("holds up to %s/s", short(knee)) font "Arial,10" tc rgb INK
    if (place(knee) > 0.22) {
        set label 1 at first knee, graph 0.965 right offset -0.6, 0
    } else {
        set label 1 at first knee, graph 0.915 left offset 0.6, 0
    }
}

do for [i = 1 : N] {
    set label 10 + i sprintf("%s limit %s", NAME[i], seconds(LIMIT[i])) at graph 0.01, \
        first LIMIT[i] left offset 0, 0.5 tc lt i noenhanced font "Arial,9"
}

plot for [i = 1 : N] LIMIT[i] with lines lt i lw 1.2 dt (8, 5) notitle, \
     for [i = 1 : N] DATA index i - 1 using 2:3 with linespoints lt i title NAME[i]
