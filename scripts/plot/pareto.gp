# Cost against latency of a plan's candidates: the verdict by colour and shape, the SLO's limit, and
# as a staircase the least latency that a budget buys. Numbers are ranks, explained at the right.
#
# Data, two blocks:
#   rank  label  detail  verdict  cost_usd_per_h  latency_s  latency_low_s  latency_high_s
#   statistic  limit_s
#     a row for each candidate that was simulated with all its replicas, in order of rank; low and
#     high are the confidence interval over seeds, or NaN
#   front_cost_usd_per_h  front_latency_s
#     those of them to which none is cheaper and faster, in order of cost

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "Cost against latency"
W = 1030
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
list(r, t, d, x, y) = n < LISTED ? \
    (n = n + 1, RANK[n] = r, TEXT[n] = t, X[n] = x, Y[n] = y, \
     PRICE[n] = sprintf("$%.2f/h, %s%s", x, seconds(y), d eq "-" ? "" : ", ".d)) : 0
stats DATA index 0 using \
    (statistic = strcol(9), limit = number(10), \
     y_low = least(y_low, least(least($6, number(7)), number(10))), \
     y_high = most(y_high, most(most($6, number(8)), number(10))), \
     list($1, strcol(2), strcol(3), $5, $6), $5) nooutput name "C"

PANEL = 300.0
set lmargin at screen 72.0 / W
set rmargin at screen 1 - PANEL / W
set tmargin at screen 1 - 84.0 / H
set bmargin at screen 58.0 / H
set xlabel "cost ($/h)" tc rgb INK
set ylabel statistic." (s)" noenhanced tc rgb INK offset 1, 0
LOG_Y = y_high > 20 * y_low
LOG_X = C_max > 20 * C_min
# An axis starts at 0 unless the points would then crowd at its end.
start(low, high) = low < 0.4 * high ? 0 : most(0, low - 0.2 * most(high - low, 0.1 * high))
X_FROM = start(C_min, C_max)
X_TO = C_max + 0.1 * (C_max - X_FROM)
Y_FROM = start(y_low, y_high)
Y_TO = y_high + 0.1 * (y_high - Y_FROM)
if (LOG_Y) {
    set logscale y
    set yrange [y_low / 1.6 : y_high * 1.6]
    eval log_marks("y", y_low / 1.6, y_high * 1.6)
} else {
    set yrange [Y_FROM : Y_TO]
}
if (LOG_X) {
    set logscale x
    set xrange [C_min / 1.3 : C_max * 1.3]
    eval log_marks("x", C_min / 1.3, C_max * 1.3)
} else {
    set xrange [X_FROM : X_TO]
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
place_x(x) = LOG_X ? log(x / C_min) / log(C_max / C_min) : (x - X_FROM) / (X_TO - X_FROM)
place_y(y) = LOG_Y ? log(y / y_low) / log(y_high / y_low) : (y - Y_FROM) / (Y_TO - Y_FROM)
near(i, j) = abs(place_x(X[i]) - place_x(X[j])) < 0.025 && abs(place_y(Y[i]) - place_y(Y[j])) < 0.04
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

is(v) = strcol(4) eq v ? $6 : NaN
plot DATA index 1 using 1:2 with steps lc rgb PALE lw 2 notitle, \
     DATA index 0 using 5:7:(0):($8 - $7) with vectors nohead lc rgb PALE lw 3 notitle, \
     DATA index 0 using 5:(is("infeasible")) with points pt 2 ps 0.7 lw 1.5 lc rgb VERMILION \
        notitle, \
     DATA index 0 using 5:(is("unverified")) with points pt 6 ps 0.9 lw 1.5 lc rgb PURPLE \
        notitle, \
     DATA index 0 using 5:(is("marginal")) with points pt 13 ps 1 lc rgb ORANGE notitle, \
     DATA index 0 using 5:(is("feasible")) with points pt 7 ps 0.9 lc rgb BLUE notitle, \
     NaN with points pt 7 ps 0.9 lc rgb BLUE title "feasible", \
     NaN with points pt 13 ps 1 lc rgb ORANGE title "marginal", \
     NaN with points pt 6 ps 0.9 lw 1.5 lc rgb PURPLE title "unverified", \
     NaN with points pt 2 ps 0.7 lw 1.5 lc rgb VERMILION title "infeasible", \
     NaN with lines lc rgb PALE lw 2 title "front"
