/* Which instance this is, and what EC2 announces about it: spot interruption, scheduled
 * maintenance, rebalance recommendation. Requested from IMDSv2 every few seconds, and only on EC2.
 * Reports each thing once; agent/drain.c decides what follows. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/neuron/record.h"

typedef enum NoticeKind {
        NOTICE_SPOT, /* meta-data/spot/instance-action: stop, terminate or hibernate, a time */
        NOTICE_MAINTENANCE, /* meta-data/events/maintenance/scheduled: reboot, retirement …, a
                               window */
        NOTICE_REBALANCE,   /* meta-data/events/recommendations/rebalance: a risk; no deadline */
        N_NOTICE_KINDS,
} NoticeKind;

typedef struct Notice {
        NoticeKind kind;
        char action[32]; /* terminate, system-reboot …; letters, digits, `-` and `_` only */
        uint64_t
                when_usec; /* CLOCK_REALTIME, may lie in the past; 0 = unknown, as with rebalance */
} Notice;

/** Parses a reply. Pure; hostile input, at most 64 KiB of it. Of several scheduled events the
 * earliest active one counts.
 * @param body  need not end in a NUL
 * @return 1 and *ret, 0: nothing is announced, -EINVAL: not as EC2 documents it, or too large,
 * -ENOMEM
 * @see Amazon EC2 User Guide, "Spot Instance interruption notices"
 * (spot-instance-termination-notices.html), "Scheduled events for Amazon EC2 instances"
 * (monitoring-instances-status-check_sched.html), "EC2 instance rebalance recommendations"
 * (rebalance-recommendations.html) */
int notice_parse(NoticeKind kind, const char *body, size_t n, Notice *ret);

typedef struct Ec2Notices Ec2Notices;
typedef struct Ec2NoticesOptions {
        sd_event *event;
        Clock *clock;
        char *const *environment; /* AWS_EC2_METADATA_DISABLED, …_SERVICE_ENDPOINT; not kept */
        const char *sysfs_root;   /* DMI says whether this is EC2; not kept */
        /* Also when what was announced has changed. Neither callback may free the Ec2Notices. */
        void (*on_notice)(const Notice *n, void *userdata);
        /* What was announced is withdrawn or over. */
        void (*on_withdrawn)(NoticeKind kind, void *userdata);
        void *userdata;
} Ec2NoticesOptions;

/** @return 0 and *ret; *ret == NULL: this is not EC2, or the metadata service is disabled or its
 * address is invalid (logged). -errno */
int ec2_notices_new(Ec2Notices **ret, const Ec2NoticesOptions *options);
Ec2Notices *ec2_notices_free(Ec2Notices *n); /* takes NULL, returns NULL */
DEFINE_CLEANUP(Ec2Notices, ec2_notices_free);

/* Which notice is requested next and when, and what is new in an answer. Pure. */
typedef struct NoticeSchedule { /* all zero = nothing was requested yet, everything is due */
        uint64_t due_usec[N_NOTICE_KINDS];
        unsigned n_failures[N_NOTICE_KINDS]; /* in a row */
        bool is_announced[N_NOTICE_KINDS];
        Notice announced[N_NOTICE_KINDS];
} NoticeSchedule;

typedef enum NoticeChange {
        NOTICE_UNCHANGED,
        NOTICE_ANNOUNCED, /* in announced[kind]: for the first time, or changed */
        NOTICE_WITHDRAWN,
} NoticeChange;

/** @return what is to be requested next; *ret_due_usec: CLOCK_BOOTTIME, may lie in the past */
NoticeKind notice_schedule_next(const NoticeSchedule *s, uint64_t *ret_due_usec);

typedef struct NoticeAnswer {
        NoticeKind kind;
        unsigned status;  /* of HTTP; 0 = none */
        const char *text; /* the document, with 200; else NULL */
} NoticeAnswer;

/** An answer that is none (no server, a status but 200 and 404, not a document as EC2 documents it)
 * changes nothing that was announced and is retried with twice the wait, up to five minutes.
 * @param now_usec  CLOCK_BOOTTIME */
NoticeChange notice_schedule_handle(NoticeSchedule *s, const NoticeAnswer *answer,
                                    uint64_t now_usec);

/** @return whether the last answer to any request was none */
bool notice_schedule_is_failing(const NoticeSchedule *s);

/** The id of this node, by the configuration, DMI, the instance metadata service, or the host name;
 * in this order. The service is requested only where DMI has no instance id (containers without
 * /sys/devices, some virtual machines), which takes a second at most outside of EC2.
 * @param ret_origin  static text @return 0, -errno */
int ec2_find_instance_id(const Config *config, char *const *environment,
                         char ret[static INSTANCE_ID_SIZE], const char **ret_origin);
