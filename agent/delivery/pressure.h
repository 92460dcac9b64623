/* How hard the machine is pressed (PSI), and how much of the time a worker may therefore work: the
 * job comes first. pressure_share() decides and is pure; the reader reads the kernel's figures at
 * most ten times a second, and only while somebody asks. Private to this folder, but for
 * pressure_share_now().
 */
#pragma once

#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

typedef struct PressureSample { /* what passed between two readings */
        uint64_t elapsed_usec;

        /* In which some task waited for a CPU (`some total=`), the machine's; our own threads are
         * among them. */
        uint64_t waited_usec;
        uint64_t busy_usec;       /* CPU time that was not idle, of all CPUs together */
        uint64_t others_run_usec; /* on a CPU, all but our own threads */
        uint64_t own_run_usec;    /* on a CPU, our own threads */
} PressureSample;

#define PRESSURE_SHARE_MIN 0.01
/** @param share  of one CPU's time that a worker, with the threads that work for it, may use so
 * far, PRESSURE_SHARE_MIN … 1
 * @return the share from now on: a quarter while others lose time to us, half as much again when
 * they do not */
double pressure_share(double share, const PressureSample *sample);

typedef struct Pressure Pressure;
/** @param clock      borrowed; must outlive it
 * @param proc_root  where procfs is mounted; pressure/cpu and stat of it are read; without
 * stat, others are taken to use one CPU
 * @param ret_note   a sentence when the kernel has no PSI (the agent then backs off from nothing),
 * the caller's; else NULL
 * @return 0, also without PSI: *ret is NULL then; -ENOMEM */
int pressure_new(Pressure **ret, Clock *clock, const char *proc_root, char **ret_note);
Pressure *pressure_free(Pressure *p); /* takes NULL, returns NULL */
DEFINE_CLEANUP(Pressure, pressure_free);

/** For how long a worker is to rest that has just worked for so long: two seconds at most. What is
 * done by other threads for it counts, and what idle priority kept from all of them does not. Any
 * thread. p == NULL: 0.
 * @param worked_usec  of wall time since its last rest */
uint64_t pressure_pause_usec(Pressure *p, uint64_t worked_usec);
/** The share in force, for status: 1 = all of the time, also when p is NULL. */
double pressure_share_now(const Pressure *p);
