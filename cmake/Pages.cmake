# Man pages and completion scripts, printed by the program itself: cmake -DGAC=... -DOUTPUT=...
# -P Pages.cmake
function(write_page path)
  execute_process(COMMAND ${GAC} help ${ARGN} OUTPUT_FILE ${OUTPUT}/${path}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${OUTPUT})
foreach(folder man/man1 bash-completion/completions zsh/site-functions
               fish/vendor_completions.d)
  file(MAKE_DIRECTORY ${OUTPUT}/${folder})
endforeach()
write_page(man/man1/gac.1 --man)
execute_process(COMMAND ${GAC} help --commands OUTPUT_VARIABLE commands
                COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${commands}" commands)
string(REPLACE "\n" ";" commands "${commands}")
foreach(command ${commands})
  write_page(man/man1/gac-${command}.1 --man ${command})
endforeach()
write_page(bash-completion/completions/gac --completion bash)
write_page(zsh/site-functions/_gac --completion zsh)
write_page(fish/vendor_completions.d/gac.fish --completion fish)
