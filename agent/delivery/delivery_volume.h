/* A volume as a destination. Private to this folder. */
#pragma once

#include "agent/delivery/destination.h"
#include "uploaders/volume/volume.h"

extern const DestinationType destination_volume_type;

/** @return 0 and another Volume of the same directory, for another thread; -errno */
int delivery_volume_open(const Destination *d, Volume **ret);
