package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
)

// writeWant writes both files of the variables.
func (v *liveVolume) writeWant(text string) {
	v.Helper()
	v.write(appliedFile, text, wantFile, text)
}

// isApplied reports whether the last process has opened applied as it is now.
func isApplied(t *testing.T, state string) bool {
	t.Helper()
	s, err := loadState(state)
	if err != nil {
		t.Fatal(err)
	}
	return s.Equal
}

// TestVariableIsRemoved: the containers restart when an object ceases to give a variable, and applied gets no receipt before none has it.
func TestVariableIsRemoved(t *testing.T) {
	password := leak.NewValue()
	for name, test := range map[string]struct {
		// kubelet is what the kubelet gives after the removal, one after the other. "" stands for no variable.
		kubelet []string
		after   time.Duration
		starts  string
	}{
		"at once":          {[]string{""}, time.Hour, "0 61"},
		"late by a second": {[]string{password, password, ""}, time.Hour, "0 61 61.25 62.25"},
		"late by a minute": {[]string{password, password, password, password, password, password, ""}, time.Hour, "0 61 61.25 62.25 65.25 75.25 95.25 135.2"},
	} {
		t.Run(name, func(t *testing.T) {
			v, state := newVolume(t, false), t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				v.writeWant("V_NAME=x\x00V_PASSWORD=" + password + "\x00")
				p := envPod(t, v, state)
				p.setVariable("V_NAME", "x")
				p.setVariable("V_PASSWORD", password)
				p.setVariable("HOSTNAME", "web-0")
				left := slices.Clone(test.kubelet)
				p.onStart = func() {
					if len(p.starts) > 1 && len(left) > 0 {
						if p.variables["V_PASSWORD"] = left[0]; left[0] == "" {
							delete(p.variables, "V_PASSWORD")
						} else if isApplied(t, state) {
							t.Error("applied has a receipt while the containers start with the variable")
						}
						left = left[1:]
					}
				}
				defer p.start()()
				<-time.After(time.Minute)
				v.writeWant("V_NAME=x\x00")
				p.wakeUp()
				<-time.After(test.after)
				p.expectStarts(test.starts)
				if !isApplied(t, state) {
					t.Errorf("applied has no receipt\n%s", p.log)
				}
				if err := leak.CheckFiles(state); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestVariableComesAndGoes: the kubelet gave a variable to the containers that the file has never had. Only its prefix tells that it is not
// the image's.
func TestVariableComesAndGoes(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v.writeWant("V_NAME=x\x00")
		p := envPod(t, v, state)
		p.setVariable("V_NAME", "x")
		p.setVariable("V_PASSWORD", "revoked")
		p.setVariable("PATH", "/bin")
		defer p.start()()
		<-time.After(30 * time.Second)
		if isApplied(t, state) {
			t.Error("applied has a receipt")
		}
		p.removeVariable("V_PASSWORD")
		<-time.After(time.Hour)
		p.expectStarts("0 60") // after --patience
		if !isApplied(t, state) {
			t.Error("applied has no receipt")
		}
	})
}

// TestUnknownVariables: a process that finds running containers and no state does not take their variables for its own. They restart after
// --patience, and applied has no receipt before.
func TestUnknownVariables(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	if err := os.WriteFile(startedIn(state), nil, 0o600); err != nil { // the containers run
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("two")
		p := envPod(t, v, state)
		p.setVariable("VALUE", "two") // those of the containers may be older
		defer p.start()()
		<-time.After(30 * time.Second)
		if isApplied(t, state) {
			t.Error("applied has a receipt")
		}
		<-time.After(time.Hour)
		p.expectStarts("0 60")
		if !isApplied(t, state) {
			t.Error("applied has no receipt")
		}
	})
}

// TestOldVariablesAndNoState: the kubelet gives old variables, and the restart for that can't be noted. It is made up for later.
func TestOldVariablesAndNoState(t *testing.T) {
	v, state := newVolume(t, false), t.TempDir()
	blocked := filepath.Join(state, stateFile+".new")
	synctest.Test(t, func(t *testing.T) {
		v.writeEnv("one")
		p := envPod(t, v, state)
		p.setVariable("VALUE", "one")
		p.onStart = func() {
			if len(p.starts) == 2 {
				if err := os.Mkdir(blocked, 0o700); err != nil {
					t.Error(err)
				}
			}
		}
		defer p.start()()
		<-time.After(time.Minute)
		v.writeEnv("two")
		p.wakeUp()
		<-time.After(time.Minute)
		p.setVariable("VALUE", "two")
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if !isApplied(t, state) {
			t.Errorf("applied has no receipt\n%s", p.log)
		}
	})
}
