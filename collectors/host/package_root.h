/* A root directory whose packages are listed, and the records about it. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "lib/base/strbuf.h"

#define PACKAGE_NAME_SIZE 128
#define PACKAGE_VERSION_SIZE 128
#define PACKAGES_MAX 512 /* of one record */

typedef struct PackageRoot {
        int fd;     /* of the root, O_PATH */
        pid_t pid;  /* of the process whose root it is; 0: the host's */
        int out_fd; /* gets the records */
        StrBuf b;   /* the record that is being made */
        int result; /* 0; -errno: no further record is written */
} PackageRoot;

/** Starts a record. @param source  what kind of package it lists */
void package_root_begin(PackageRoot *root, const char *source);
/** Writes the record; sets root->result. */
void package_root_end(PackageRoot *root);

/** Records the packages of AWS Neuron that dpkg has installed. */
void package_root_add_dpkg(PackageRoot *root);
/** Records what AWS's packages have installed below /opt/aws/neuron. */
void package_root_add_opt(PackageRoot *root);
