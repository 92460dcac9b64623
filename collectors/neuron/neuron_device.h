/* Parts of the collector neuron_device: what one device is asked, in a process of its own (docs/SNAPSHOT.md, neuron_device). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/neuron/neuron_device_door.h"
#include "lib/base/strbuf.h"

enum {
        DEVICE_ASKING_SIZE = 64,
        DEVICE_LINE_BYTES_MAX = 64 << 10,
};

/** Shared with the collector, so that it can say what a part hung on. */
typedef struct DeviceProgress {
        char asking[DEVICE_ASKING_SIZE]; /* "" when no answer is waited for */
        bool is_done;
} DeviceProgress;

/** One device in its part. */
typedef struct DeviceAsk {
        const char *name; /* neuron3 */
        unsigned number;
        NeuronDevice device;
        DeviceProgress *progress;
        int out_fd;
        int error; /* the first failure of writing a record: nothing more is asked then */
} DeviceAsk;

/** Sends a command, with what is being asked noted first. @return as neuron_ioctl() */
int device_ask(DeviceAsk *a, const char *query, uint32_t command, void *argument);
/** As device_ask(), and a failure becomes a record. @return whether there is an answer */
bool device_answers(DeviceAsk *a, const char *query, uint32_t command, void *argument);

/** Opens a record with its device and query, and an object `values` in it. */
void device_begin(const DeviceAsk *a, StrBuf *b, const char *query);
/** Closes both and writes it. */
void device_end(DeviceAsk *a, StrBuf *b);
/** A record that says why there is no answer. @param r  as of neuron_ioctl(), not 0 */
void device_say_error(DeviceAsk *a, const char *query, int r);
void device_error_text(char *text, size_t size, int r);

/** What each device is asked. */
void device_ask_free(DeviceAsk *a);
/** What every device would answer alike: asked of one only, since each question takes a line of the driver's log. */
void device_ask_node(DeviceAsk *a);
typedef enum DeviceHeld { DEVICE_NOT_HELD, DEVICE_HELD, DEVICE_HELD_UNKNOWN } DeviceHeld;
/** What a process's descriptor stands for, by the device number (in tests: the file), not by its name: anybody can have a file that is called
 * neuron0. Nothing is opened. @param dir_fd, link  the magic link  @param number  what it is called; in a container another device may be
 * @return the device's number, -ENODEV none of ours, another -errno when it cannot be told */
int device_number_of(const char *device_directory, int dir_fd, const char *link, int number);
/** Whether another process, none of the parts beside this one, has a Neuron device open other than O_WRONLY, and the runtime mapped.
 * @param proc_root  where procfs is mounted  @param device_directory  where the devices are */
DeviceHeld device_is_held(const char *proc_root, const char *device_directory);
/** Whether the node is part of an UltraServer, or cannot be said not to be. @param ret_why  a static text, when true */
bool device_is_ultraserver(const char *sysfs_root, const char **ret_why);
