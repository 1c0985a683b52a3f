#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# faults.sh SOURCE_DIR [CC CXX]: plants faults in copies of the test kernels and of the dialect, one at a time, by editing their
# text, and wants each reported as what it is, with its tensor or place. Kernels hold no hooks for this.
# Needs gcc or clang, and clang++ >= 19. About a second a fault.
set -eu
root=$(cd "$1" && pwd)
cc=${2:-cc} cxx=${3:-clang++-19}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
isa=
[ "$(uname -m)" != x86_64 ] || isa=-march=x86-64-v3
host="$cc -std=gnu11 -O1 $isa -I$root/include"
kernels="$cxx -std=c++17 -O0 $isa -nostdinc++ -ffp-contract=off -fno-strict-aliasing -fno-exceptions -fno-rtti -I$root/include"

for f in "$root"/backends/simt/{fiber,scheduler,shadow,tensors,regions,counters,launch}.c "$root/tests/simt/driver.c"; do
    $host -c "$f" -o "$work/$(basename "$f").o" &
done
wait
planted=0 missed=0

copy() { # TREE: what a kernel file includes
    mkdir -p "$1/backends" "$1/tests"
    cp -r "$root/common" "$1/"
    cp -r "$root/backends/gpu" "$root/backends/simt" "$1/backends/"
    cp -r "$root/tests/simt" "$1/tests/"
    chmod -R u+w "$1"
}
compile() { # TREE WIDTH OBJECT
    case $2 in 32) target=simt_cuda ;; *) target=simt_hip ;; esac
    $kernels -DGPU_WAVE="$2" -DGPU_TARGET=$target -DGPU_EMULATED '-DGPU_SOURCE="../../tests/simt/kernels.gpu.cpp"' \
        -c "$1/backends/simt/unit.cpp" -o "$3"
}
try() { # NAME FILE SED REPORT WIDTH: one fault at one width; prints a line, fails if the report is another
    local tree=$work/$1.$5 log=$work/$1.$5.log other=$((96 - $5))
    copy "$tree"
    sed -i "$3" "$tree/$2"
    if cmp -s "$root/$2" "$tree/$2"; then
        echo "NOT PLANTED ($5 lanes) $1"
        return 1
    fi
    compile "$tree" "$5" "$tree/k.o"
    $cc "$tree/k.o" "$work/clean.$other.o" "$work"/*.c.o -lpthread -lm -o "$tree/driver"
    if "$tree/driver" fault "$5" >"$log" 2>&1; then
        echo "MISSED ($5 lanes) $1"
        return 1
    fi
    if ! grep -q "FAULT.*$4" "$log"; then
        echo "WRONG REPORT ($5 lanes) $1: wanted $4"
        cat "$log"
        return 1
    fi
    echo "caught ($5 lanes) $1: $(grep -m1 "FAULT.*$4" "$log" | cut -c7-)"
    rm -rf "$tree"
}
jobs=()
plant() { # WIDTHS NAME FILE SED REPORT
    local width
    for width in ${1//,/ }; do
        try "$2" "$3" "$4" "$5" "$width" &
        jobs+=($!)
        planted=$((planted + 1))
        if [ ${#jobs[@]} -ge 2 ]; then
            wait "${jobs[0]}" || missed=$((missed + 1))
            jobs=("${jobs[@]:1}")
        fi
    done
}

copy "$work/clean"
for width in 32 64; do compile "$work/clean" $width "$work/clean.$width.o"; done
$cc "$work"/clean.{32,64}.o "$work"/*.c.o -lpthread -lm -o "$work/driver"
"$work/driver" fault >"$work/log" || {
    echo "the kernels have faults as they are:"
    cat "$work/log"
    exit 1
}

flash=tests/simt/flash.gpu.h rows=tests/simt/rows.gpu.h tickets=tests/simt/tickets.gpu.h device=backends/gpu/gpu_device.h
plant 32,64 barrier_before_v $flash '/V and P are there/s/gpu_block_barrier();//' 'flash.gpu.h.*race: load after a write\|asynchronous copy of thread\|uninitialised'
plant 32,64 barrier_before_k $flash '/copy_k.land/{n;s/gpu_block_barrier();//}' 'race: load after a write\|uninitialised\|asynchronous copy of thread'
plant 32,64 wave_barrier_read_after_write $flash '/S is complete/s/gpu_wave_barrier();//' 'race: load after a write by thread\|uninitialised'
plant 32,64 wave_barrier_write_after_read $flash '/everybody has read S/s/gpu_wave_barrier();//' 'race: store after a read by thread'
plant 32,64 store_one_row_too_many $flash '/^ *if (row < nq)$/{N;s/<\( nq)\n *gpu_store<8>\)/<=\1/}' 'store of 16 bytes outside tensor o .* at row 100 column'
plant 32,64 load_one_row_too_many $device 's/r < limit;/r <= limit;/' 'load of 16 bytes outside tensor [qkv] .* at row 1[03]0 column'
plant 32,64 shuffle_in_a_branch $flash 's/top = gpu_wave_max<LPR>(top);/if (r < 8) top = gpu_wave_max<LPR>(top);/' 'divergent shuffle: only lanes [0-9a-f]* are here'
plant 32,64 misaligned_shared $flash 's/, c = u % (CH \/ 8) \* 8, row/, c = u % (CH \/ 8) * 8 + 1, row/' 'misaligned shared load of 16 bytes\|outside a shared array'
plant 32,64 padding_read $flash 's/gpu_load<4>(w\[t\].s, r, 4 \* (i \* LPR + sub))/gpu_load<4>(w[t].s, r, 4 * (i * LPR + sub) + 4)/' 'load of 16 bytes outside a shared array\|uninitialised'
plant 32,64 barrier_not_for_all $rows 's/gpu_block_barrier();/if (gpu_thread() == 7) return; gpu_block_barrier();/' 'block barrier reached by [0-9]* of [0-9]* threads'
plant 32,64 barrier_for_other_waves $rows 's/gpu_block_barrier();/if (gpu_wave_id()) gpu_block_barrier(); else gpu_block_barrier();/' 'block barrier reached by'
plant 32,64 part_not_written $rows 's/if (gpu_lane() == 0) {/if (gpu_thread() == 0) {/' 'load of uninitialised shared memory'
plant 32,64 stale_from_the_item_before $rows 's/if (gpu_lane() == 0) {/if (gpu_lane() == 0 \&\& item == gpu_block()) {/' 'load of uninitialised shared memory'
plant 32,64 misaligned_global $rows 's/gpu_aligned<16>(x, row)/true/; s/gpu_aligned<16>(y, row)/true/' 'misaligned 16-byte load of tensor x at row 1'
plant 32,64 column_past_the_end $rows '0,/body + first; c < n/s/body + first; c < n/body + first; c <= n/' 'load of 4 bytes outside tensor x .* at row [01] column 100'
plant 32,64 two_blocks_write_a_row $rows 's/row = (int)item, n/row = 0 * (int)item, n/' 'race in global memory: store after a store by block'
plant 32,64 reads_what_another_block_writes $rows 's/me.l = gpu_rcp(me.l);/if (row) gpu_load<1>(y, row - 1, 0); &/' 'race in global memory: .*tensor y, element'
plant 32,64 reads_what_another_lane_writes $rows '/write(y, row, c, gpu_load<1>/s/$/ gpu_load<1>(y, row, 3);/' 'race in global memory: .* thread'
plant 32,64 word_outside $tickets 's/a.partial, 0, ticket, word/a.partial, 1, ticket, word/' 'atomic access outside tensor partial'
plant 32,64 waits_for_itself $tickets 's/a.partial, 0, ticket - 1/a.partial, 0, ticket/' 'waits for what no other block writes'
plant 32,64 another_has_a_fault $tickets 's/gpu_write<float>(a.y, 0, 0, 0, ticket,/gpu_write<float>(a.y, 0, 0, 0, ticket + 100 * (ticket == 7),/; s/while ((word/while (ticket == 8 || (word/' 'store of 4 bytes outside tensor y'
plant 32,64 tile_not_uniform $flash 's/tile::load_bk(kt, s.in.t.k, n \* M,/tile::load_bk(kt, s.in.t.k, n * M + (lane == 5),/' 'divergent load_bk'
plant 32,64 nan_of_a_masked_key $device 's/const bool in = row0 + row(0) + r < limit;/const bool in = true;/' 'test_flash_64: block [0-9]* thread [0-9]* (wave [0-9]* lane [0-9]*) flash.gpu.h:[0-9]*: NaN stored in tensor o at row'
plant 64 barrier_after_q $flash '/load_a(qa\[kk\]/{n;s/gpu_block_barrier();//}' 'race: store after a read by thread'
plant 32 copy_issued_too_early $flash 's/copy_v.land(s.in.t.v);/if (k0 + BC < end) copy_k.issue(s.in.t.k, k, k0 + BC, nk); &/' 'race: .* by thread'
plant 32 copy_never_waited_for $device 's/^ *gpu_copy_wait();/;/' 'asynchronous copy'
plant 32 copy_waited_for_too_late $flash 's/copy_v.land(s.in.t.v);//; s/rescale(out, scale);/&copy_v.land(s.in.t.v);/' 'asynchronous copy of thread\|race: load after a write'
for job in "${jobs[@]}"; do wait "$job" || missed=$((missed + 1)); done
echo "$planted faults planted, $missed not caught as they should"
[ $missed = 0 ]
