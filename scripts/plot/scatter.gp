# Predicted against measured latency, a point a request: on the line the prediction is right, in the
# band it is off by at most a tenth. A panel for each metric.
#
# Data: a block (two empty lines between) for each metric and part, rows in order of request:
#   metric (ttft, tpot or e2e)  part  measured_s  predicted_s

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "Predicted against measured"
W = 1080
H = 430
load ARG0[1 : strlen(ARG0) - strlen("scatter.gp")]."style.gp"

stats DATA using 3 nooutput name "S"
N = S_blocks
array METRIC[N]
array PART[N]
array LOW[N]
array HIGH[N]
do for [i = 1 : N] {
    LOW[i] = NaN
    HIGH[i] = NaN
    stats DATA index i - 1 using \
        (METRIC[i] = strcol(1), PART[i] = strcol(2), LOW[i] = least(LOW[i], least($3, $4)), \
         HIGH[i] = most(HIGH[i], most($3, $4)), $3) nooutput
}
of(m) = sum [i = 1 : N] (METRIC[i] eq m)
panels = (of("ttft") > 0) + (of("tpot") > 0) + (of("e2e") > 0)
if (panels == 0) {
    exit error sprintf("%s: expected the metrics ttft, tpot and e2e, got %s", DATA, METRIC[1])
}

LEFT = 72.0
RIGHT = 20.0
GAP = 66.0
width = (W - LEFT - RIGHT - (panels - 1) * GAP) / panels
set multiplot
set tmargin at screen 1 - 84.0 / H
set bmargin at screen 58.0 / H
set samples 200
set key at screen LEFT / W, screen 1 - 66.0 / H left center horizontal maxrows 1
p = 0
do for [m in "ttft tpot e2e"] {
    if (of(m) > 0) {
        set lmargin at screen (LEFT + p * (width + GAP)) / W
        set rmargin at screen (LEFT + p * (width + GAP) + width) / W
        low = NaN
        high = NaN
        mine = ""
        do for [i = 1 : N] {
            if (METRIC[i] eq m) {
                low = least(low, LOW[i])
                high = most(high, HIGH[i])
                mine = mine.sprintf(" %d", i)
            }
        }
        if (low > 0 && high > 20 * low) {
            set logscale xy
            low = low / 1.2
            high = high * 1.2
            eval log_marks("x", low, high)
            eval log_marks("y", low, high)
        } else {
            unset logscale xy
            low = 0
            high = high * 1.06
            set xtics 0, mark_step(high, 0)
            set ytics 0, mark_step(high, 0)
        }
        set xrange [low : high]
        set yrange [low : high]
        set xlabel sprintf("measured %s (s)", m eq "ttft" ? "time to first token" : \
            m eq "tpot" ? "time between tokens" : "end-to-end time") tc rgb INK
        set ylabel p == 0 ? "predicted (s)" : "" tc rgb INK offset 1, 0
        plot "+" using 1:($1 * 0.9):($1 * 1.1) with filledcurves fc rgb FAINT notitle, \
             x with lines lc rgb GREY lw 1 notitle, \
             for [i in mine] DATA index int(i) - 1 using 3:4 with points pt 7 ps 0.45 \
             lc rgb (PART[int(i)] eq "held out" ? VERMILION : BLUE) title PART[int(i)]
        unset key
        unset label 1001
        unset label 1002
        p = p + 1
    }
}
unset multiplot
