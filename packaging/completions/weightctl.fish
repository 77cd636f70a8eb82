# fish completion for weightctl(1): the completions that the file for bash finds

function __weightctl_complete
	set -l word (commandline -ct)
	set -l plain (string unescape -- $word; or echo $word)
	set -l lines (bash @completiondir@/weightctl (commandline -opc) "$plain")
	printf '%s\n' $lines[2..-1]

	set -l option (string match -r -- '^--[^=]*=' $plain; or echo "")
	set -l path (string replace -r -- '^--[^=]*=' '' $plain)
	switch "$lines[1]"
		case files
			printf '%s\n' $option(__fish_complete_path "$path")
		case folders
			printf '%s\n' $option(__fish_complete_directories "$path")
	end
end

complete -c weightctl -f -a '(__weightctl_complete)'
