/* The RPM packages of a root. */
#pragma once

#include <stdint.h>

#include "collectors/host/package_root.h"

/** Records the packages of AWS Neuron. No record without a database.
 * @param program  rpm, absolute */
void rpm_list(PackageRoot *root, const char *program, uint64_t timeout_usec);
