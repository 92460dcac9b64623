/* What the files of the supervisor share: supervise.c (a connection), supervise_look.c (a snapshot), supervise_task.c (a child),
 * supervise_watch.c (what is followed all the time). Each has one poll() for all that it waits for. */
#pragma once

#include <poll.h>

#include "collectors/runner/document.h"
#include "collectors/runner/order.h"
#include "collectors/runner/supervise.h"

#define TASKS_AT_ONCE 4
#define PARTS_FORMAT ".part-%s"
#define RAW_FORMAT ".raw-%s"

/** Sends one message; what does not fit is cut. @return 0, -errno: the agent is gone, or does not read (nothing waits for it) */
int supervise_say(int fd, const char *fmt, ...) _printf_(2, 3);

/* ---- a child ---- */

typedef struct Task {
        const Collector *collector;
        char child_name[64]; /* of --child= */
        pid_t pid;           /* 0 = not started, or over */
        int pid_fd, out_fd, why_fd;
        uint64_t begun_usec, started_usec,
                ended_usec; /* CLOCK_REALTIME, then CLOCK_BOOTTIME twice */
        uint64_t timeout_usec, killed_usec, max_bytes, n_bytes;
        SectionState state;
        bool has_started, has_ended;
        char why[512];
        size_t n_why;
        /* What it writes, in pieces as they come. Negative: it is killed. */
        int (*on_output)(struct Task *t, const char *data, size_t n);
        void *userdata;
} Task;

/** Executes ourselves anew. @param order_fd  borrowed, its offset does not matter @param dir_fd  borrowed; -1 = none @return 0, -errno */
int task_start(Task *t, int order_fd, int dir_fd);
/** It ends without having been started. @param state  what becomes of its section @param fmt  why */
void task_give_up(Task *t, SectionState state, const char *fmt, ...) _printf_(3, 4);
/** Adds what it waits for. @return how many of `fds` were written, at most TASK_FDS */
#define TASK_FDS 3
size_t task_poll(const Task *t, struct pollfd *fds);
/** Reads what is there, looks whether it has ended or has had its time, and sets has_ended, state and why. */
void task_step(Task *t, uint64_t now_usec);
/** When task_step() is wanted at the latest; USEC_INFINITY when it is over. */
uint64_t task_deadline(const Task *t);
/** Kills it with its process group. @param state  what becomes of its section */
void task_kill(Task *t, SectionState state, const char *why);

/* ---- a snapshot, a watch ---- */

/** @param fd  of the agent @param dir_fd  borrowed @return 0: told as `done`; -errno: to be told as `failed` */
int supervise_look(int fd, const ProbeOrder *order, int dir_fd);
int supervise_watch(int fd, const ProbeOrder *order);
/** @return a memfd of the caller's for children, -errno */
int supervise_order_fd(const ProbeOrder *order);
