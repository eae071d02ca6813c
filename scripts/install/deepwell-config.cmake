# find_package(deepwell) gives the target deepwell::deepwell.
include("${CMAKE_CURRENT_LIST_DIR}/deepwell-targets.cmake")
