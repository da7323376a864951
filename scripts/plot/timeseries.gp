# A run over time, in panels: KV blocks, sequences, how busy the GPU is, the worst latency,
# preemptions, and what was the bottleneck.
#
# Data, two blocks; the second may be missing:
#   t_s  running  waiting  swapped  kv_used_fraction  kv_cached_fraction  preempts (so far)
#     a row for each sample
#   start_s  end_s  busy_fraction  flops_utilization  bandwidth_utilization  ttft_max_s  e2e_max_s
#   bottleneck
#     a row for each window; NaN where unknown
# Values hold from one sample to the next; nothing is smoothed.

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "The run over time"

# Panels are TALL points high, the strip of bottlenecks THIN, each under a line of its own.
TALL = 112.0
THIN = 16.0
LINE = 30.0
TOP = 56.0
set datafile separator "\t"
stats DATA using 1 nooutput name "T"
WINDOWS = T_blocks > 1
N_TALL = WINDOWS ? 5 : 3
W = 960
H = int(TOP + N_TALL * (LINE + TALL) + WINDOWS * (LINE + THIN) + 56)
load ARG0[1 : strlen(ARG0) - strlen("timeseries.gp")]."style.gp"

stats DATA index 0 using 1:7 nooutput name "S"
t_end = S_max_x
requests = 0
burst = 0
before = NaN
since(now) = (more = known(before) ? now - before : now, before = now, more)
stats DATA index 0 using \
    (requests = most(requests, most($2, most($3, $4))), burst = most(burst, since($7)), $1) nooutput
if (WINDOWS) {
    v_low = NaN
    v_high = NaN
    stats DATA index 1 using \
        (t_end = most(t_end, $2), v_low = least(v_low, least(number(6), number(7))), \
         v_high = most(v_high, most(number(6), number(7))), $2) nooutput
}
t_end = t_end > S_min_x ? t_end : S_min_x + 1
SCALE = t_end >= 3 * 3600 ? 3600.0 : t_end >= 600 ? 60.0 : 1.0
UNIT = SCALE == 3600 ? "h" : SCALE == 60 ? "min" : "s"

set multiplot
set lmargin at screen 60.0 / W
set rmargin at screen 1 - 150.0 / W
set xrange [S_min_x / SCALE : t_end / SCALE]
set format x ""
set yrange [0 : *]
set ytics autofreq
set key at graph 1.02, graph 1 left top vertical font "Arial,10" samplen 1.2
set style fill solid 0.85 noborder
y = TOP
# Commands that give the next panel its place and its line of text.
place(height) = sprintf("y = y + LINE + %g; set tmargin at screen 1 - (y - %g) / H; ".\
    "set bmargin at screen 1 - y / H", height, height)
caption(text) = sprintf("set label 1 \"%s\" at graph 0, graph 1 left offset 0, 0.7 ".\
    "font \"Arial,10\" tc rgb INK", text)

eval place(TALL)
eval caption("KV blocks (share of the pool)")
set yrange [0 : 1.0001]
set ytics ("0" 0, "50%%" 0.5, "100%%" 1)
CACHED = "#C5E3F6"
plot DATA index 0 using ($1 / SCALE):($5 + $6) with fillsteps fc rgb CACHED \
        fs solid 1 border lc rgb CACHED title "cached", \
     "" index 0 using ($1 / SCALE):5 with fillsteps fc rgb BLUE \
        fs solid 1 border lc rgb BLUE title "in use"
unset label 1001
unset label 1002
set yrange [0 : *]
set ytics autofreq

eval place(TALL)
eval caption("requests")
set ytics mark_step(most(requests, 1), 1)
plot DATA index 0 using ($1 / SCALE):3 with steps lc rgb VERMILION lw 1.5 title "waiting", \
     "" index 0 using ($1 / SCALE):2 with steps lc rgb BLUE lw 1.5 title "running", \
     "" index 0 using ($1 / SCALE):4 with steps lc rgb PURPLE lw 1.5 title "swapped out"

if (WINDOWS) {
    # Each window is drawn flat from its start to its end.
    eval place(TALL)
    eval caption("share of time, share of peak")
    set yrange [0 : 1.0001]
    set ytics ("0" 0, "50%%" 0.5, "100%%" 1)
    plot DATA index 1 using ($1 / SCALE):3:(($2 - $1) / SCALE):(0) with vectors nohead \
            lc rgb BLUE lw 2 title "GPU busy", \
         "" index 1 using ($1 / SCALE):5:(($2 - $1) / SCALE):(0) with vectors nohead \
            lc rgb ORANGE lw 2 title "bandwidth", \
         "" index 1 using ($1 / SCALE):4:(($2 - $1) / SCALE):(0) with vectors nohead \
            lc rgb GREEN lw 2 title "FLOP/s"

    eval place(TALL)
    eval caption("worst latency of a window (s)")
    set yrange [0 : *]
    set ytics mark_step(v_high > 0 ? v_high : 1, 0)
    set yrange [0 : v_high > 0 ? 1.05 * v_high : 1]
    if (v_low > 0 && v_high > 20 * v_low) {
        set logscale y
        set yrange [v_low / 1.5 : v_high * 1.5]
        set ytics autofreq
    }
    plot DATA index 1 using ($1 / SCALE):7:(($2 - $1) / SCALE):(0) with vectors nohead \
            lc rgb BLUE lw 2 title "end to end", \
         "" index 1 using ($1 / SCALE):6:(($2 - $1) / SCALE):(0) with vectors nohead \
            lc rgb ORANGE lw 2 title "first token"
    unset logscale y
    set yrange [0 : *]
}

eval place(TALL)
eval caption("preemptions since the sample before")
before = NaN
set ytics mark_step(most(burst, 1), 1)
if (!WINDOWS) {
    set format x "%g"
    set xlabel sprintf("time (%s)", UNIT) tc rgb INK
}
if (burst == 0) {
    set yrange [0 : 1]
}
plot DATA index 0 using ($1 / SCALE):(since($7)) with impulses lc rgb VERMILION lw 1.5 notitle

if (WINDOWS) {
    eval place(THIN)
    eval caption("bottleneck")
    set format x "%g"
    set xlabel sprintf("time (%s)", UNIT) tc rgb INK
    set border 0
    unset ytics
    set yrange [0 : 1]
    set xtics scale 0.5 offset 0, 0.2
    is(name) = strcol(8) eq name ? 0 : NaN
    array NAME[7] = ["arrivals", "compute", "bandwidth", "kv", "max_seqs", "pcie", "host"]
    array FILL[7] = [PALE, GREEN, ORANGE, VERMILION, BLUE, PURPLE, BLACK]
    array SEEN[7]
    do for [i = 1 : 7] {
        SEEN[i] = 0
    }
    stats DATA index 1 using \
        (sum [i = 1 : 7] (SEEN[i] = strcol(8) eq NAME[i] ? 1 : SEEN[i], 0)) nooutput
    set key at graph 1, graph 1 right bottom horizontal maxrows 1
    plot for [i = 1 : 7] DATA index 1 \
        using ($1 / SCALE):(is(NAME[i])):($1 / SCALE):($2 / SCALE):(0):(1) \
        with boxxyerror fc rgb FILL[i] fs solid border lc rgb FILL[i] lw 0.5 \
        title (SEEN[i] ? NAME[i] : "")
}
unset multiplot
