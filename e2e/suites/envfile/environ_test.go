package envfile

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// TestEnviron: a process whose environment has the entries of a file has the file's content as its /proc/PID/environ.
func TestEnviron(t *testing.T) {
	dice.Each(t, 1, readEnviron)
}

func readEnviron(t *testing.T, random *rand.Rand) {
	variables := append(randomVariables(random, 1000), envfile.Variable{Name: "spring.datasource.url", Value: "a=b"},
		envfile.Variable{Name: "2-b", Value: "x"}, envfile.Variable{Name: "IFS", Value: "/"}, envfile.Variable{Name: "UID", Value: ""})
	data, skipped := envfile.Encode(volume.EnvEnviron, variables)
	if skipped != nil {
		t.Fatalf("%q were skipped", skipped)
	}
	cmd := exec.Command("cat", "/proc/self/environ")
	cmd.Env = strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes differ from the %d of the file", len(got), len(data))
	}
}
