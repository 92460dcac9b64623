/* What the driver and crashpoint.so share: a mapped file, its layout known to
 * tests/campaign/crashpoint.py as well. The driver writes, with `at` last; the daemon's threads
 * count and act. It outlives the daemon, so that one file serves many of its lives. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#define CRASH_MAGIC UINT64_C(0x31545049534152)
#define CRASH_PLACE_SOCKET                                                                         \
        31 /* TCP; the bits below are the directories of CRASHPOINT_PLACES, in order */
#define CRASH_PLACE_MEMORY 30
#define CRASH_N_PLACES 32

typedef enum CrashOperation {
        CRASH_OPEN, /* that may create or truncate */
        CRASH_WRITE,
        CRASH_FSYNC, /* fdatasync, sync_file_range too */
        CRASH_TRUNCATE,
        CRASH_RENAME,
        CRASH_LINK,
        CRASH_UNLINK,
        CRASH_MKDIR,
        CRASH_SEND,
        CRASH_OPEN_READ, /* that creates nothing */
        CRASH_READ,      /* recv too */
        CRASH_ALLOCATE,  /* malloc, calloc, realloc: of the daemon alone, not of its children */
        CRASH_N_OPERATIONS,
} CrashOperation;

typedef enum CrashAction {
        CRASH_NOTHING,
        CRASH_KILL_BEFORE,
        CRASH_KILL_AFTER,
        CRASH_TEAR,        /* half of a write, then kill; what is no write is killed after */
        CRASH_FAIL,        /* not done, `error` */
        CRASH_DO_AND_FAIL, /* done, `error` all the same: what a network file system may say */
        CRASH_SHORTEN,     /* half of a write, and it says so */
} CrashAction;

typedef struct CrashControl {
        uint64_t magic;
        _Atomic int64_t clock_offset_nsec; /* of CLOCK_REALTIME and its relatives */
        _Atomic uint64_t at;               /* the counted call that acts, from 1; 0 = none */
        _Atomic uint64_t seen;             /* calls counted since the driver put 0 here */
        uint32_t operations;               /* bits of CrashOperation that are counted */
        uint32_t places;                   /* bits of places that are counted */
        uint32_t action;
        int32_t error;          /* an errno */
        uint64_t times;         /* so many calls from the at-th on act; killing needs one */
        _Atomic uint64_t acted; /* calls that did */
        char what[128];         /* the first call that acted: `pwrite /…/state.db-wal` */
        _Atomic uint64_t
                totals[CRASH_N_PLACES][CRASH_N_OPERATIONS]; /* all calls, acted on or not */
} CrashControl;
