#!/usr/bin/env bash
# What test_conform.sh runs besides a tenth of the lines on the H200: other chips. A test of its own, so that both may run at the same time.
exec bash "$(dirname "$0")/test_conform.sh" --others
