// What most sources here include, compiled once before them (kernels/build.py): a quarter of a second for each of them
// goes into reading these. A source still includes what it uses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "simd.h"
