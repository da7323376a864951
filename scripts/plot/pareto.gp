# Cost against latency of a plan's candidates: the verdict by colour and shape, the SLO's limit, and
# as a staircase the least latency that a budget buys. Numbers are ranks, explained at the right.
#
# Data, two blocks:
#   rank  label  verdict  cost_usd_per_h  latency_s  latency_low_s  latency_high_s  statistic
#   limit_s
#     a row for each candidate that was simulated with all its replicas, in order of rank; low and
#     high are the confidence interval over seeds, or NaN
#   front_cost_usd_per_h  front_latency_s
#     those of them to which none is cheaper and faster, in order of cost

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "Cost against latency"
W = 1000
H = 560
load ARG0[1 : strlen(ARG0) - strlen("pareto.gp")]."style.gp"

LISTED = 12
array RANK[LISTED]
array TEXT[LISTED]
array PRICE[LISTED]
array X[LISTED]
array Y[LISTED]
n = 0
statistic = ""
limit = NaN
y_low = NaN
y_high = NaN
list(r, t, x, y) = n < LISTED ? \
    (n = n + 1, RANK[n] = r, TEXT[n] = t, X[n] = x, Y[n] = y, \
     PRICE[n] = sprintf("$%.2f/h, %s", x, seconds(y))) : 0
stats DATA index 0 using \
    (statistic = strcol(8), limit = number(9), y_low = least(y_low, least($5, number(9))), \
     y_high = most(y_high, most($5, number(9))), \
     list($1, strcol(2), $4, $5), $4) nooutput name "C"

PANEL = 270.0
set lmargin at screen 72.0 / W
set rmargin at screen 1 - PANEL / W
set tmargin at screen 1 - 84.0 / H
set bmargin at screen 58.0 / H
set xlabel "cost ($/h)" tc rgb INK
set ylabel statistic." (s)" noenhanced tc rgb INK offset 1, 0
LOG_Y = y_high > 20 * y_low
LOG_X = C_max > 20 * C_min
if (LOG_Y) {
    set logscale y
    set yrange [y_low / 1.6 : y_high * 1.6]
    eval log_marks("y", y_low / 1.6, y_high * 1.6)
} else {
    set yrange [0 : y_high * 1.12]
}
if (LOG_X) {
    set logscale x
    set xrange [C_min / 1.3 : C_max * 1.3]
    eval log_marks("x", C_min / 1.3, C_max * 1.3)
} else {
    set xrange [0 : C_max * 1.08]
}
set key at graph 0, screen 1 - 64.0 / H left center horizontal maxrows 1 width -1 \
    font "Arial,10"
do for [i = 1 : n] {
    y = 84.0 + 37 * (i - 1)
    set label 100 + i sprintf("%d", RANK[i]) at screen 1 - (PANEL - 34) / W, screen 1 - y / H \
        right font "Arial,10" tc rgb INK
    set label 200 + i TEXT[i] at screen 1 - (PANEL - 42) / W, screen 1 - y / H left \
        noenhanced font "Arial,10" tc rgb INK
    set label 300 + i PRICE[i] at screen 1 - (PANEL - 42) / W, screen 1 - (y + 15) / H left \
        noenhanced font "Arial,9" tc rgb GREY
}

# Ranks stand beside their points; those of points too near each other share one label.
place_x(x) = LOG_X ? log(x / C_min) / log(C_max / C_min) : x / C_max
place_y(y) = LOG_Y ? log(y / y_low) / log(y_high / y_low) : y / y_high
near(i, j) = abs(place_x(X[i]) - place_x(X[j])) < 0.03 && abs(place_y(Y[i]) - place_y(Y[j])) < 0.04
array HOST[LISTED]
array RANKS[LISTED]
do for [i = 1 : n] {
    HOST[i] = i
    RANKS[i] = sprintf("%d", RANK[i])
    do for [j = 1 : i - 1] {
        if (HOST[i] == i && HOST[j] == j && near(i, j)) {
            HOST[i] = j
            RANKS[j] = RANKS[j].", ".RANKS[i]
        }
    }
}
do for [i = 1 : n] {
    if (HOST[i] == i) {
        set label 400 + i RANKS[i] at first X[i], first Y[i] left offset 0.6, 0.5 \
            font "Arial,9" tc rgb INK
    }
}

if (known(limit)) {
    set label 1 sprintf("limit %s", seconds(limit)) at graph 0.01, first limit left \
        offset 0, 0.5 font "Arial,9" tc rgb INK
    set arrow 1 from graph 0, first limit to graph 1, first limit nohead lc rgb INK lw 1.2 dt (8, 5)
}

is(v) = strcol(3) eq v ? $5 : NaN
plot DATA index 1 using 1:2 with steps lc rgb PALE lw 2 notitle, \
     DATA index 0 using 4:6:(0):($7 - $6) with vectors nohead lc rgb PALE lw 3 notitle, \
     DATA index 0 using 4:(is("infeasible")) with points pt 2 ps 0.7 lw 1.5 lc rgb VERMILION \
        notitle, \
     DATA index 0 using 4:(is("unverified")) with points pt 6 ps 0.9 lw 1.5 lc rgb PURPLE \
        notitle, \
     DATA index 0 using 4:(is("marginal")) with points pt 13 ps 1 lc rgb ORANGE notitle, \
     DATA index 0 using 4:(is("feasible")) with points pt 7 ps 0.9 lc rgb BLUE notitle, \
     NaN with points pt 7 ps 0.9 lc rgb BLUE title "feasible", \
     NaN with points pt 13 ps 1 lc rgb ORANGE title "marginal", \
     NaN with points pt 6 ps 0.9 lw 1.5 lc rgb PURPLE title "unverified", \
     NaN with points pt 2 ps 0.7 lw 1.5 lc rgb VERMILION title "infeasible", \
     NaN with lines lc rgb PALE lw 2 title "front"
