# draw runs this after plots/style.gp, with the name of a table.
set datafile separator "\t"
stats table skip 1 nooutput
steps = STATS_records
runs = STATS_columns - 2
most = 1e-6
do for [i = 1:runs] {
    stats table using (abs(column(i + 2) - column(2))) skip 1 nooutput
    if (STATS_max > most) { most = STATS_max }
}
array colours[6] = ['#D55E00', '#0072B2', '#009E73', '#CC79A7', '#E69F00', '#56B4E9']
colour(i) = colours[(i - 1) % 6 + 1]
set xrange [1:steps]
set lmargin at screen px(80)
set rmargin at screen 1 - px(20)
set multiplot

set title 'Loss of runs in other storage against a reference'
set tmargin at screen 1 - py(40)
set bmargin at screen 1 - py(320)
set format x ''
set ylabel 'mean loss of the target tokens (measured)'
set key top right autotitle columnhead
plot table using 1:2 with lines linewidth 5 linecolor rgb '#bbbbbb', \
     for [i = 1:runs] table using 1:i + 2 with lines linewidth 1.4 linecolor rgb colour(i)

unset title
unset key
set tmargin at screen 1 - py(345)
set bmargin at screen py(55)
set format x '%g'
set xlabel 'optimizer step'
set ylabel 'difference' offset 1,0
set yrange [-1.1 * most:1.1 * most]
plot 0 with lines linewidth 2 linecolor rgb '#bbbbbb', \
     for [i = 1:runs] table using 1:(column(i + 2) - column(2)) skip 1 with lines linewidth 1.2 \
         linecolor rgb colour(i)
unset multiplot
