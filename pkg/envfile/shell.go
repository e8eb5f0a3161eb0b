package envfile

import "strings"

// quoteShell returns a value in a form that a POSIX shell can read. Between single quotes only the closing quote is special.
func quoteShell(value string) string { return `'` + strings.ReplaceAll(value, `'`, `'\''`) + `'` }

// keptByShell reports whether dash or bash uses the variable for itself, so that a plain assignment does not set it to the value, or does
// harm:
//
//   - an assignment to a read-only variable ends the shell (bash in POSIX mode);
//   - the value of an integer is evaluated as an arithmetic expression, which can run
//     commands: x[$(id)] (bash);
//   - OPTIND ends the shell if its value is not a number (dash);
//   - an assignment to HISTFILESIZE truncates the file that HISTFILE names (bash);
//   - IFS changes how the script that reads the file splits words; a shell ignores the inherited one;
//   - commands in PS4 run if the script that reads the file traces itself;
//   - the others have a value of the shell's own, or never reach the environment.
//
// Variables that a shell or a loader uses later, such as PATH, BASH_ENV or LD_PRELOAD, are not in the list: they have the same effect if a
// container gets them from its own environment.
func keptByShell(name string) bool {
	switch name {
	// Read-only in bash. BASH_REMATCH was, in releases before 5.1.
	case "BASHOPTS", "BASH_REMATCH", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID",
		// Integers in bash.
		"BASHPID", "HISTCMD", "OPTIND", "RANDOM", "SRANDOM",
		"HISTFILESIZE", "IFS", "PS4",
		// Arrays in bash, which an environment cannot hold.
		"BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_CMDS", "BASH_LINENO", "BASH_SOURCE",
		"DIRSTACK", "FUNCNAME", "GROUPS", "PIPESTATUS",
		// Values that bash computes; BASH_MONOSECONDS since 5.3. SHLVL reaches a program one lower if the program replaces the shell.
		"BASH_ARGV0", "BASH_COMMAND", "BASH_MONOSECONDS", "BASH_SUBSHELL",
		"COMP_WORDBREAKS", "EPOCHREALTIME", "EPOCHSECONDS", "LINENO", "SECONDS", "SHLVL", "_":
		return true
	}
	return false
}
