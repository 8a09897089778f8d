#!/bin/sh
# Tensors of a safetensors FILE, for scripts of commands.
#   tensors.sh shapes FILE             NAME SHAPE of each, in the file's order
#   tensors.sh sums FILE               NAME CHECKSUM of each
#   tensors.sh norm FILE               the norm of all its values, which are fp32
#   tensors.sh poke FILE NAME AT BYTES writes BYTES, as printf(1) has them, from byte AT of the tensor on
set -eu
header=$(od -An -tu8 -N8 "$2" | tr -d ' ')

# NAME SHAPE BEGIN END of each; places are those in the file.
list() {
    head -c $((8 + header)) "$1" | tail -c "$header" | sed 's/"__metadata__":{[^}]*},*//; s/},/}\n/g' |
        sed -n 's/^{*"\([^"]*\)":.*"shape":\(\[[^]]*\]\),"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2 \3 \4/p' |
        awk -v begin=$((8 + header)) '{ print $1, $2, begin + $3, begin + $4 }'
}

case $1 in
shapes) list "$2" | cut -d ' ' -f 1,2 ;;
sums)
    list "$2" | while read -r name _ begin end; do
        echo "$name $(tail -c +$((begin + 1)) "$2" | head -c $((end - begin)) | cksum)"
    done
    ;;
norm)
    od -An -v -tf4 -w4 -j $((8 + header)) "$2" | awk '{ sum += $1 * $1 } END { printf "%.9g\n", sqrt(sum) }'
    ;;
poke)
    begin=$(list "$2" | awk -v name="$3" '$1 == name { print $3 }')
    printf "$5" | dd of="$2" bs=1 conv=notrunc seek=$((begin + $4)) 2>/dev/null
    ;;
esac
