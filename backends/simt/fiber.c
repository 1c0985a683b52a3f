/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fiber.c: the context of a lane, x86-64 (System V) and AArch64. A switch saves the registers that a function call keeps and
 * changes the stack; about 2 ns. A port needs these two functions.
 */
#include "state.h"

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch,@function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch,.-fiber_switch\n");
enum { SAVED = 6 }; /* registers below the return address */

void *fiber_new(char *stack_top, void (*entry)(void))
{
    void **top = (void **)((uintptr_t)stack_top & ~(uintptr_t)15) - 2; /* entered by ret: aligned as after a call */
    top[0] = (void *)(uintptr_t)entry;
    top[1] = NULL;
    for (int i = 1; i <= SAVED; i++)
        top[-i] = NULL;
    return top - SAVED;
}
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch,%function\n"
        "fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fiber_switch,.-fiber_switch\n");

void *fiber_new(char *stack_top, void (*entry)(void))
{
    void **frame = (void **)((uintptr_t)stack_top & ~(uintptr_t)15) - 20;
    for (int i = 0; i < 20; i++)
        frame[i] = NULL;
    frame[11] = (void *)(uintptr_t)entry; /* x30 */
    return frame;
}
#else
#error "the emulated device needs fiber_switch() for this processor"
#endif
