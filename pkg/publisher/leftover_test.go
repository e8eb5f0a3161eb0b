package publisher

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// obstruct makes a generation that can't be removed, as something is mounted on a file of it.
func (e *env) obstruct(r Request) (release func()) {
	e.Helper()
	path := filepath.Join(e.mounts.directory(r.Target), "..2001_01_01_00_00_00.0000000000000", "a")
	for _, err := range []error{
		os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600), unix.Mount(path, path, "", unix.MS_BIND, ""),
	} {
		if err != nil {
			e.Fatal(err)
		}
	}
	mounted := true
	release = func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				e.Error(err)
			}
		}
	}
	e.Cleanup(release)
	return release
}

// A generation that can't be removed keeps no update from the files. It is told and logged once, is never taken for gone,
// and goes once it can.
func TestAGenerationThatStaysStopsNoUpdate(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "0")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				e.publish(r)
				release := e.obstruct(r)
				e.objects.put(configMap("app"), "a", "1")
				after(2 * pruneTime)
				e.settle()
				e.wantFiles(r, "a", "1")
				e.wantProblem(r, "..2001_01_01_00_00_00.0000000000000: device or resource busy")
				e.wantEvents("VolumeUpdateFailed: prune volume v1: remove ..2001_01_01_00_00_00.0000000000000: device or resource busy")
				for _, value := range []string{"2", "3", "4"} {
					e.objects.put(configMap("app"), "a", value)
					e.settle()
					e.wantFiles(r, "a", value)
					e.wantProblem(r, "device or resource busy") // also before it is tried again
					after(2 * pruneTime)
					e.settle()
					e.wantProblem(r, "device or resource busy")
				}
				before := e.mounts.count("Reopen")
				after(time.Minute)
				if n := e.mounts.count("Reopen") - before; n < 10 || n > 40 {
					t.Errorf("it was tried %d times in a minute", n)
				}
				e.wantEvents()
				if lines := e.logs.with("device or resource busy"); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				release()
				after(retryMax)
				e.settle()
				e.wantProblem(r, "")
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations", n)
				}
				if lines := e.logs.with("Volume is current again"); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
			})
		})
	}
}

// What was left before a restart is as little in the way.
func TestAGenerationThatStaysOverARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		release := e.obstruct(r)
		e.restart()
		after(2 * pruneTime)
		e.settle()
		e.wantProblem(r, "device or resource busy")
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "device or resource busy")
		e.wantEvents("VolumeUpdateFailed: prune volume v1: ")
		release()
		after(retryMax)
		e.settle()
		e.wantProblem(r, "")
	})
}
