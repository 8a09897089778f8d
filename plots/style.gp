# Shared by every figure of the project. The script that loads this sets name, wide and high; with
# format = 'png' (default), 'svg' or 'pdf' it draws name.format.
#
# Colours are those of Okabe and Ito, distinguishable with any colour vision.
reset
if (!exists("format")) format = 'png'
# pixels of the layout to an inch of paper
if (!exists("per_inch")) per_inch = 100.0
paper = 100.0 / per_inch
set encoding utf8
# twice the pixels: screens have them
if (format eq 'png') set terminal pngcairo noenhanced size 2*wide,2*high font 'DejaVu Sans,10' fontscale 2 linewidth 2.6 dashlength 2 pointscale 2
if (format eq 'svg') set terminal svg noenhanced size wide,high font 'DejaVu Sans,13' linewidth 1.3 background '#ffffff'
if (format eq 'pdf') set terminal pdfcairo noenhanced size wide/per_inch,high/per_inch font 'DejaVu Sans,10' fontscale 0.7*paper linewidth 1.7*paper
if (format eq 'tex') set terminal cairolatex pdf input colortext size wide/per_inch,high/per_inch linewidth 1.7*paper
set output name.'.'.format

# pixels to screen coordinates
px(x) = x / (1.0 * wide)
py(y) = y / (1.0 * high)

# what one terminal draws larger than the others
dot = format eq 'svg' ? 0.7 : format eq 'pdf' ? 0.75 : 1.0
point = format eq 'svg' ? 1.3 : 1.0
font_title = sprintf('DejaVu Sans Bold,%.1f', 11.5 * point)
font_bold = sprintf('DejaVu Sans Bold,%.1f', 10 * point)
font_small = sprintf('DejaVu Sans,%.1f', 8.5 * point)
font_tiny = sprintf('DejaVu Sans,%.1f', 7.5 * point)

set border 3 back linewidth 0.8 linecolor rgb '#555555'
set tics out nomirror scale 0.6 textcolor rgb '#222222'
set grid back linetype 1 linewidth 0.5 linecolor rgb '#dddddd'
set title font font_title offset 0,0.3
set key noautotitle samplen 1.6 spacing (format eq 'svg' ? 0.97 : 1.15)
set style fill solid 1.0 noborder
