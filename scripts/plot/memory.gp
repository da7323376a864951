# Where a GPU's memory goes: one bar a candidate. A tick marks what a program can use; a bar that
# passes it does not fit.
#
# Data, a row for each bar from top to bottom:
#   label  reserved_bytes  weights_bytes  draft_bytes  workspace_bytes  kv_bytes  unused_bytes
#   usable_bytes

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
HEADING = "GPU memory"
set datafile separator "\t"
stats DATA using 8 nooutput name "M"
N = int(M_records)
BAR = 34.0
W = 960
H = int(88 + N * BAR + 58)
load ARG0[1 : strlen(ARG0) - strlen("memory.gp")]."style.gp"

GB = 1e9
x_high = 0
x_over = 0
longest = 0
bar(k) = column(k) / GB
below(k) = sum [j = 2 : k] (column(j) / GB)
array LABEL[N]
array OVER[N]
array FULL[N]
stats DATA using \
    (i = int($0) + 1, LABEL[i] = strcol(1), longest = most(longest, strlen(LABEL[i])), \
     FULL[i] = below(7), OVER[i] = FULL[i] - bar(8), \
     x_over = OVER[i] > 1e-3 ? most(x_over, FULL[i]) : x_over, \
     x_high = most(x_high, most(FULL[i], bar(8))), $8) nooutput

# The labels get what room they need, up to a third of the width.
LEFT = most(80.0, least(W / 3.0, 24 + 6.6 * longest))
set lmargin at screen LEFT / W
set rmargin at screen 1 - 36.0 / W
set tmargin at screen 1 - 88.0 / H
set bmargin at screen 58.0 / H
set xrange [0 : most(1.02 * x_high, 1.25 * x_over)]
set yrange [N + 0.5 : 0.5]
set xlabel "memory of one GPU (GB)" tc rgb INK
set grid noytics xtics
set border 1
unset ytics
set key at graph 0, screen 1 - 64.0 / H left center horizontal maxrows 1 font "Arial,10"
do for [i = 1 : N] {
    set label i LABEL[i] at screen (LEFT - 8) / W, first i right noenhanced font "Arial,10" \
        tc rgb INK
    if (OVER[i] > 1e-3) {
        set label N + i sprintf("does not fit: %s GB too much", short(OVER[i])) \
            at first FULL[i], first i left offset 0.8, 0 font "Arial,9" tc rgb VERMILION
    }
}

# Sizes are written where there is room for them.
array NAME[7] = ["", "reserved", "weights", "draft", "workspace", "KV pool", "unused"]
array FILL[7] = ["", PALE, BLUE, PURPLE, ORANGE, GREEN, "#F7F7F7"]
array TEXT[7] = ["", INK, "white", INK, INK, "white", INK]
size(k) = bar(k) > 0.055 * x_high ? short(bar(k)) : ""
shown(k) = bar(k) > 0 ? below(k) : NaN
plot for [k = 2 : 7] DATA using (shown(k)):($0 + 1):(below(k) - bar(k)):(below(k)):\
        ($0 + 0.7):($0 + 1.3) with boxxyerror fs solid 1 border lc rgb "white" fc rgb FILL[k] \
        title NAME[k], \
     for [k = 2 : 7] DATA using (below(k) - bar(k) / 2):($0 + 1):(size(k)) with labels \
        font "Arial,9" tc rgb TEXT[k] notitle, \
     DATA using (bar(8)):($0 + 0.6):(0):(0.8) with vectors nohead lc rgb INK lw 2 \
        title "usable"
