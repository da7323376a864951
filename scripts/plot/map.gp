# A map of one number over two knobs, such as block size and preemption policy: the number in each
# cell, and its size as the cell's shade.
#
# Data, a row for each cell, at most 24 columns and 24 rows of them:
#   column_name  row_name  value_name  column  row  value  text
# The first three are the same everywhere: what the columns, the rows and the value are. Columns and
# rows are in the order in which they first come. value is NaN for a cell without a number; text is
# what stands in the cell.

DATA = ARG1
OUT = ARG2
SUBJECT = ARG3
set datafile separator "\t"
set datafile missing "NaN"
N = 24
array COLUMN[N]
array ROW[N]
n_columns = 0
n_rows = 0
columns = ""
rows = ""
values = ""
longest = 0
low = NaN
high = NaN
# Index of a label among those seen, which it joins when it is new.
find_column(s) = (f = 0, sum [j = 1 : n_columns] (f = COLUMN[j] eq s ? j : f, 0), \
    f == 0 && n_columns < N ? (n_columns = n_columns + 1, COLUMN[n_columns] = s, n_columns) : f)
find_row(s) = (f = 0, sum [j = 1 : n_rows] (f = ROW[j] eq s ? j : f, 0), \
    f == 0 && n_rows < N ? (n_rows = n_rows + 1, ROW[n_rows] = s, n_rows) : f)
stats DATA using \
    (columns = strcol(1), rows = strcol(2), values = strcol(3), find_column(strcol(4)), \
     longest = strlen(strcol(5)) > longest ? strlen(strcol(5)) : longest, \
     v = valid(6) ? column(6) : NaN, low = v == v && !(v >= low) ? v : low, \
     high = v == v && !(v <= high) ? v : high, \
     find_row(strcol(5))) nooutput

HEADING = values." by ".columns." and ".rows
CELL_W = n_columns > 8 ? 76.0 : 96.0
CELL_H = 46.0
LEFT = 48 + 7.0 * longest
W = int(LEFT + n_columns * CELL_W + 130)
W = W < 480 ? 480 : W
H = int(84 + n_rows * CELL_H + 56)
load ARG0[1 : strlen(ARG0) - strlen("map.gp")]."style.gp"

set lmargin at screen LEFT / W
set rmargin at screen (LEFT + n_columns * CELL_W) / W
set tmargin at screen 1 - 72.0 / H
set bmargin at screen 1 - (72.0 + n_rows * CELL_H) / H
set xrange [0.5 : n_columns + 0.5]
set yrange [n_rows + 0.5 : 0.5]
set border 0
set tics scale 0
unset xtics
unset ytics
unset grid
unset key
set xlabel columns noenhanced tc rgb INK offset 0, -1.2
do for [i = 1 : n_columns] {
    set label i COLUMN[i] at first i, screen 1 - (72.0 + n_rows * CELL_H + 16) / H center \
        noenhanced tc rgb INK
}
set label 500 rows at graph 0, graph 1 right offset -1, 0.8 noenhanced font "Arial,10" tc rgb GREY
do for [i = 1 : n_rows] {
    set label 100 + i ROW[i] at screen (LEFT - 10) / W, first i right noenhanced tc rgb INK
}

# Light to dark blue, even in lightness, so that it also reads in grey.
set palette defined (0 "#F2F7FB", 0.25 "#C6DCEC", 0.5 "#8DB9D9", 0.75 "#4A8CBF", 1 "#1B4F80")
if (!(high > low)) {
    low = known(low) ? low : 0
    high = low + 1
}
set cbrange [low : high]
set colorbox user origin screen (LEFT + n_columns * CELL_W + 24) / W, \
    screen 1 - (72.0 + n_rows * CELL_H) / H size screen 14.0 / W, screen n_rows * CELL_H / H
set cbtics mark_step(high - low, 0) scale 0 textcolor rgb INK font "Arial,10"
# A missing number's text is empty or NaN.
is_number(s) = s ne "" && s ne "NaN"
dark(s) = is_number(s) ? (s - low) / (high - low) > 0.75 : 0
plot DATA using (find_column(strcol(4))):(find_row(strcol(5))):\
        (find_column(strcol(4)) - 0.5):(find_column(strcol(4)) + 0.5):\
        (find_row(strcol(5)) - 0.5):(find_row(strcol(5)) + 0.5) with boxxyerror \
        fc rgb FAINT fs solid 1 border lc rgb "white", \
     DATA using (is_number(strcol(6)) ? find_column(strcol(4)) : NaN):(find_row(strcol(5))):\
        (find_column(strcol(4)) - 0.5):(find_column(strcol(4)) + 0.5):\
        (find_row(strcol(5)) - 0.5):(find_row(strcol(5)) + 0.5):6 with boxxyerror \
        palette fs solid 1 border lc rgb "white", \
     DATA using (dark(strcol(6)) ? NaN : find_column(strcol(4))):(find_row(strcol(5))):7 \
        with labels noenhanced font "Arial,10" tc rgb INK, \
     DATA using (dark(strcol(6)) ? find_column(strcol(4)) : NaN):(find_row(strcol(5))):7 \
        with labels noenhanced font "Arial,10" tc rgb "white"
