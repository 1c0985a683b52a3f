/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* commands.h: the subcommands of `kiln`. Each gets the words after its name and returns the exit code (options.h). */
#ifndef KILN_BENCH_COMMANDS_H
#define KILN_BENCH_COMMANDS_H

int command_info(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_roofline(int argc, char **argv);
int command_report(int argc, char **argv);
int command_trace(int argc, char **argv);

#endif
