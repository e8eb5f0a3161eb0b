package envfile

import "strings"

// quoteShell returns a value as a POSIX shell reads it. Between single quotes nothing is special to it but the quote that
// ends them.
func quoteShell(value string) string { return `'` + strings.ReplaceAll(value, `'`, `'\''`) + `'` }

// keptByShell says whether dash or bash keeps the variable for itself, so that a
// plain assignment does not give it the value as it is, or does harm:
//
//   - an assignment of a read-only variable ends the shell (bash in POSIX mode);
//   - the value of an integer is evaluated as an arithmetic expression, which can run
//     commands: x[$(id)] (bash);
//   - OPTIND ends the shell where its value is no number (dash);
//   - an assignment of HISTFILESIZE truncates the file that HISTFILE names (bash);
//   - IFS changes how the script that reads the file splits words. A shell ignores the one that it inherits;
//   - commands in PS4 run where the script that reads the file traces itself;
//   - the others keep a value of the shell's own, or never reach the environment.
//
// Variables that a shell or a loader acts on later, such as PATH, BASH_ENV or LD_PRELOAD,
// are not here: a container that gets them from its own environment has them do the same.
func keptByShell(name string) bool {
	switch name {
	// Read-only in bash. BASH_REMATCH was, in releases before 5.1.
	case "BASHOPTS", "BASH_REMATCH", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID",
		// Integers in bash.
		"BASHPID", "HISTCMD", "OPTIND", "RANDOM", "SRANDOM",
		"HISTFILESIZE", "IFS", "PS4",
		// Arrays in bash, which no environment can hold.
		"BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_CMDS", "BASH_LINENO", "BASH_SOURCE",
		"DIRSTACK", "FUNCNAME", "GROUPS", "PIPESTATUS",
		// Values that bash computes; BASH_MONOSECONDS from 5.3 on. SHLVL reaches a
		// program one lower if it replaces the shell.
		"BASH_ARGV0", "BASH_COMMAND", "BASH_MONOSECONDS", "BASH_SUBSHELL",
		"COMP_WORDBREAKS", "EPOCHREALTIME", "EPOCHSECONDS", "LINENO", "SECONDS", "SHLVL", "_":
		return true
	}
	return false
}
