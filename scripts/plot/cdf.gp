# Distribution of latencies: the share of finished requests that took no longer. A panel for TTFT
# and one for E2E, a curve a run, the SLOs' limits.
#
# Data: a block (two empty lines between) for each run and metric, in order of latency:
#   run  metric (ttft or e2e)  latency_s  fraction  limit_s  limit_fraction (0.95 for a P95)
# The last two are NaN where there is no limit. Curves are steps through samples: nothing is drawn
# that no request took.

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "Distribution of latencies"
W = 960
H = 500
load ARG0[1 : strlen(ARG0) - strlen("cdf.gp")]."style.gp"

stats DATA using 3 nooutput name "C"
N = C_blocks
array RUN[N]
array METRIC[N]
array LIMIT[N]
array SHARE[N]
array LOW[N]
array HIGH[N]
array COLOUR[N]
array NOTE[N]
n_runs = 0
do for [i = 1 : N] {
    stats DATA index i - 1 using \
        (RUN[i] = strcol(1), METRIC[i] = strcol(2), LIMIT[i] = number(5), \
         SHARE[i] = number(6), $3) nooutput name "P"
    NOTE[i] = ""
    LOW[i] = P_min
    HIGH[i] = P_max
    # A run has one colour in both panels.
    COLOUR[i] = 0
    do for [j = 1 : i - 1] {
        if (RUN[j] eq RUN[i]) {
            COLOUR[i] = COLOUR[j]
        }
    }
    if (COLOUR[i] == 0) {
        n_runs = n_runs + 1
        COLOUR[i] = n_runs
    }
}
of(m) = sum [i = 1 : N] (METRIC[i] eq m)
panels = (of("ttft") > 0) + (of("e2e") > 0)
if (panels == 0) {
    exit error sprintf("%s: expected the metrics ttft and e2e, got %s", DATA, METRIC[1])
}

LEFT = 72.0
RIGHT = n_runs > 1 ? 220.0 : 28.0
GAP = 28.0
width = (W - LEFT - RIGHT - (panels - 1) * GAP) / panels
set multiplot
set tmargin at screen 1 - 88.0 / H
set bmargin at screen 58.0 / H
set yrange [0 : 100]
set ytics (0, 25, 50, 75, 90, 100)
set key at screen 1 - (RIGHT - 16) / W, screen 1 - 84.0 / H left top vertical font "Arial,10"
if (n_runs < 2) {
    unset key
}
p = 0
do for [m in "ttft e2e"] {
    if (of(m) > 0) {
        set lmargin at screen (LEFT + p * (width + GAP)) / W
        set rmargin at screen (LEFT + p * (width + GAP) + width) / W
        x_low = NaN
        x_high = NaN
        drawn = NaN
        do for [i = 1 : N] {
            unset arrow i
            unset label i
            if (METRIC[i] eq m) {
                x_low = least(x_low, least(LOW[i], LIMIT[i]))
                x_high = most(x_high, most(HIGH[i], LIMIT[i]))
                if (known(LIMIT[i]) && LIMIT[i] != drawn) {
                    drawn = LIMIT[i]
                    set arrow i from first LIMIT[i], graph 0 to first LIMIT[i], graph 1 nohead \
                        lc rgb INK lw 1 dt (8, 5) front
                    NOTE[i] = known(SHARE[i]) ? \
                        sprintf("P%g limit %s", 100 * SHARE[i], seconds(LIMIT[i])) : \
                        sprintf("limit %s", seconds(LIMIT[i]))
                }
            }
        }
        if (x_low > 0 && x_high > 20 * x_low) {
            set logscale x
            set xrange [x_low / 1.1 : x_high * 1.1]
            eval log_marks("x", x_low / 1.1, x_high * 1.1)
        } else {
            unset logscale x
            set xtics autofreq
            set xrange [0 : x_high * 1.05]
        }
        # A limit near the end of the axis has its note to the left.
        do for [i = 1 : N] {
            if (METRIC[i] eq m && NOTE[i] ne "") {
                if (LIMIT[i] > 0.6 * x_high) {
                    set label i NOTE[i] at first LIMIT[i], screen 1 - 78.0 / H right \
                        offset 1, 0 font "Arial,9" tc rgb INK
                } else {
                    set label i NOTE[i] at first LIMIT[i], screen 1 - 78.0 / H center \
                        font "Arial,9" tc rgb INK
                }
            }
        }
        set format y p == 0 ? "%g%%" : ""
        set xlabel m eq "ttft" ? "time to first token (s)" : "end-to-end time (s)" tc rgb INK
        set ylabel p == 0 ? "share of finished requests" : "" tc rgb INK offset 1, 0
        mine = ""
        do for [i = 1 : N] {
            mine = METRIC[i] eq m ? mine.sprintf(" %d", i) : mine
        }
        plot for [i in mine] DATA index int(i) - 1 using 3:(100 * $4) with steps lt COLOUR[int(i)] \
            title RUN[int(i)], \
            for [i in mine] "+" using (LIMIT[int(i)]):(100 * SHARE[int(i)]) every ::0::0 \
            with points pt 6 ps 1 lw 1.5 lc rgb INK notitle
        unset key
        unset label 1001
        unset label 1002
        p = p + 1
    }
}
unset multiplot
