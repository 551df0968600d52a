# The MPI plug-in, libgac_mpi.so: loaded only where mpirun started several processes.
if(GAC_SANITIZE OR GAC_FUZZ)
  set(default OFF)
else()
  set(default AUTO)
endif()
set(GAC_MPI ${default} CACHE STRING "Build the MPI plug-in: AUTO (where it can be), ON or OFF")
set_property(CACHE GAC_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT GAC_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GAC_MPI: AUTO, ON or OFF, not ${GAC_MPI}")
endif()
if(NOT GAC_MPI)
  return()
endif()

find_package(MPI QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  if(GAC_MPI STREQUAL AUTO)
    message(NOTICE "MPI plug-in: not built (no MPI for C found)")
    return()
  endif()
  message(FATAL_ERROR "MPI plug-in: no MPI for C found")
endif()
message(STATUS "MPI plug-in: built with ${MPI_C_LIBRARIES}")

add_library(gac_mpi MODULE ${PROJECT_SOURCE_DIR}/src/base/mpi/mpi_team.c
                           ${PROJECT_SOURCE_DIR}/src/base/error.c)
target_include_directories(gac_mpi PRIVATE include src)
target_link_libraries(gac_mpi PRIVATE MPI::MPI_C)
target_link_options(gac_mpi PRIVATE -Wl,--no-undefined -Wl,-z,nodelete
                    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
set_target_properties(gac_mpi PROPERTIES
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
                      C_VISIBILITY_PRESET hidden
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
install(TARGETS gac_mpi LIBRARY DESTINATION lib/gac)
