package publisher

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

func TestARestartTakesVolumesOver(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", "x")
		group := int64(2000)
		r, other := e.request("v1", "configMap", "app", "defaultMode", "0400"), e.request("v2", "secret", "db")
		r.FSGroup = &group
		e.publish(r)
		e.publish(other)
		e.halt()
		e.objects.put(configMap("app"), "a", "2") // while nobody looks
		e.writes.trees = nil
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantFiles(other, "password", "x")
		if n := e.mounts.count("Create"); n != 2 {
			t.Errorf("%d file systems were made", n)
		}
		for _, tree := range e.writes.trees {
			if tree.Files[0].Path == "a" && (tree.GID != 2000 || tree.Files[0].Mode != 0o440) {
				t.Errorf("after the restart: group %d, %v", tree.GID, tree.Files[0])
			}
		}
		e.rest()
		if e.used() != 2*taken(1, 1) {
			t.Errorf("%d bytes counted", e.used())
		}
		e.publish(r)
		e.objects.put(secret("db"), "password", "y")
		e.settle()
		e.wantFiles(other, "password", "y")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

func TestARestartWithoutTheAPIServer(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "1")
		if e.used() != taken(1, 1) {
			t.Errorf("%d bytes counted", e.used())
		}
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.objects.failWith(configMap("app"), nil)
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

// Nothing is left of what is no longer mounted, and nothing is done to what is there instead.
func TestARestartAfterAReboot(t *testing.T) {
	for name, foreign := range map[string]bool{"rebooted": false, "another mount there": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.halt()
				e.mounts.vanish(r.Target)
				e.mounts.setForeign(r.Target, foreign)
				e.restart()
				e.settle()
				if len(e.objects.registrations()) > 0 || e.used() != 0 || len(e.p.volumes) > 0 {
					t.Errorf("left: %d bytes, %d volumes", e.used(), len(e.p.volumes))
				}
				if e.mounts.count("Unmount") > 0 {
					t.Error("something was unmounted")
				}
			})
		})
	}
}

// The mount may vanish between the start and the answer of the API server.
func TestAVolumeThatVanishesBeforeItsPodIsRead(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.pods.set(volume.Env{}, errFault)
		e.restart()
		e.settle()
		e.mounts.vanish(r.Target)
		e.pods.set(volume.Env{}, nil)
		after(10 * time.Second)
		e.settle()
		if len(e.objects.registrations()) > 0 || e.used() != 0 || len(e.p.volumes) > 0 {
			t.Errorf("left: %d bytes, %d volumes", e.used(), len(e.p.volumes))
		}
	})
}

// What can't be read at first is tried again.
func TestARestartThatCannotLookAtAMountRetries(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.mounts.failAt("Open", errFault)
		e.mounts.failAt("Reopen", errFault)
		e.restart()
		after(retryMax)
		e.mounts.failAt("Open", nil)
		e.mounts.failAt("Reopen", nil)
		e.objects.put(configMap("app"), "a", "2")
		after(2 * retryMax)
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestRestoreUnmountsOnlyWhatNobodyWillUnpublish(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		known, orphan, waiting := e.request("v1"), e.request("v2"), e.request("v3")
		for _, r := range []Request{known, orphan, waiting} {
			e.publish(r)
		}
		e.halt()
		e.pods.remove(waiting)
		if err := os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods", string(orphan.Pod.UID))); err != nil {
			t.Fatal(err)
		}
		e.restart()
		e.settle()
		if got := e.mounts.targets(); !slices.Equal(got, []string{known.Target, waiting.Target}) {
			t.Errorf("mounted are %v", got)
		}
		if lines := e.logs.with("Unmounted a volume whose pod is gone", `volumeID="v2"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		if lines := e.logs.with("until the kubelet publishes it again", `volumeID="v3"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestACleanUpThatFailsDoesNotStopTheStart(t *testing.T) {
	for _, method := range []string{"Unmount"} {
		t.Run(method, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r, orphan := e.request("v1"), e.request("v2")
				e.publish(r)
				e.publish(orphan)
				e.halt()
				if err := os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods/uid-v2")); err != nil {
					t.Fatal(err)
				}
				e.mounts.failAt(method, errFault)
				e.restart()
				e.settle()
				if lines := e.logs.with("E0101", errFault.Error()); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				e.publish(r)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
			})
		})
	}
}

// A volume whose mount vanishes while it fails is not current.
func TestADroppedVolumeIsNotCurrent(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.remove(configMap("app"))
		e.settle()
		e.mounts.vanish(r.Target)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		if lines := e.logs.with("current again"); len(lines) > 0 {
			t.Errorf("logged %q", lines)
		}
	})
}
