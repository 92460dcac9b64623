/* What EC2 says of this instance's end: spot interruption, scheduled maintenance, rebalance recommendation. Asked of IMDSv2 every few
 * seconds, and only on EC2. Says each thing once. What follows from it is decided elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

typedef enum NoticeKind {
        NOTICE_SPOT, /* meta-data/spot/instance-action: stop, terminate or hibernate, with a time */
        NOTICE_MAINTENANCE, /* meta-data/events/maintenance/scheduled: reboot, retirement … with a window */
        NOTICE_REBALANCE, /* meta-data/events/recommendations/rebalance: an elevated risk; no deadline */
        N_NOTICE_KINDS,
} NoticeKind;

typedef struct Notice {
        NoticeKind kind;
        char action
                [32]; /* terminate, system-reboot …, as EC2 says it; letters, digits, `-` and `_` only */
        uint64_t
                when_usec; /* CLOCK_REALTIME, may lie in the past; 0 = not said; never 0 with maintenance, always 0 with rebalance */
} Notice;

/** Parses a reply. Pure; hostile input, of which at most 64 KiB are taken. Of several scheduled events the earliest that is active counts.
 * @param body  need not end in a NUL
 * @return 1 and *ret, 0: nothing is announced, -EINVAL: not of the form that EC2 documents, or too large, -ENOMEM
 * @see Amazon EC2 User Guide, "Spot Instance interruption notices" (spot-instance-termination-notices.html), "Scheduled events for Amazon
 * EC2 instances" (monitoring-instances-status-check_sched.html), "EC2 instance rebalance recommendations" (rebalance-recommendations.html) */
int notice_parse(NoticeKind kind, const char *body, size_t n, Notice *ret);

typedef struct Notices Notices;
typedef struct NoticesOptions {
        sd_event *event;
        Clock *clock;
        char *const *
                environment; /* AWS_EC2_METADATA_DISABLED, AWS_EC2_METADATA_SERVICE_ENDPOINT; not kept */
        const char *
                sysfs_root; /* whether this is EC2 at all is told by DMI, or by an endpoint that is given; not kept */
        /* Also when what was announced has changed. Neither callback may free the Notices. */
        void (*on_notice)(const Notice *n, void *userdata);
        /* What was announced is not any more (a spot interruption that was withdrawn, maintenance that is over). */
        void (*on_withdrawn)(NoticeKind kind, void *userdata);
        void *userdata;
} NoticesOptions;

/** @return 0 and *ret; *ret == NULL: this is not EC2, or the metadata service is switched off or misspelt (logged): nothing is asked. -errno */
int notices_new(Notices **ret, const NoticesOptions *options);
Notices *notices_free(Notices *n); /* takes NULL, returns NULL */
DEFINE_CLEANUP(Notices, notices_free);
