package envfile

import (
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestShellSkipsItsOwnVariables(t *testing.T) {
	// One for each reason. Tests with real shells check that the list is complete.
	kept := []string{"BASH_COMMAND", "GROUPS", "HISTFILESIZE", "IFS", "OPTIND", "PPID", "PS4", "RANDOM", "SECONDS", "SHLVL", "UID", "_"}
	taken := []string{"BASH_ENV", "HOME", "LD_PRELOAD", "PATH", "PWD", "optind", "__"}
	var variables []Variable
	for _, name := range slices.Concat(kept, taken) {
		variables = append(variables, Variable{name, "x"})
	}
	if _, skipped := Encode(volume.EnvShell, variables); !slices.Equal(skipped, kept) {
		t.Errorf("Encode skips %q; want %q", skipped, kept)
	}
	if _, skipped := Encode(volume.EnvDotenv, variables); skipped != nil {
		t.Errorf("Encode skips %q in a dotenv file; want none", skipped)
	}
}
