package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

func TestAChangeBecomesFiles(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1", "gone", "x")
		e.objects.put(secret("db"), "password", "old")
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]")
		same := e.request("v2", "secret", "db")
		e.publish(r)
		e.publish(same)
		e.objects.put(configMap("app"), "a", "2", "new", "y")
		e.objects.put(secret("db"), "password", "new")
		e.settle()
		e.wantFiles(r, "a", "2", "new", "y", "password", "new")
		e.wantFiles(same, "password", "new")
		shown := e.recorded(r)
		for _, ref := range []volume.Ref{configMap("app"), secret("db")} {
			if shown[ref] != e.objects.get(ref).Version {
				t.Errorf("the record says %v of %s", shown[ref], ref)
			}
		}
		e.unpublish(r)
		e.unpublish(same)
		e.wantNothing()
	})
}

func TestNothingIsOpenedForVersionsThatAreShown(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.takeReads(configMap("app"))
		for range 10 {
			e.p.objectChanged(volume.ServiceAccount{}, configMap("app"))
			e.settle()
		}
		if n := len(e.objects.takeReads(configMap("app"))); n != 10 {
			t.Errorf("%d reads, want 10", n)
		}
		if n := e.mounts.count("Reopen"); n != 0 {
			t.Errorf("the mount was opened %d times", n)
		}
	})
}

func TestADeletedRequiredObjectKeepsItsFiles(t *testing.T) {
	for _, test := range []struct {
		name    string
		remove  func(o *fakeObjects)
		problem string
	}{
		{"object", func(o *fakeObjects) { o.remove(configMap("app")) }, `items: ConfigMap "shop/app" not found`},
		{"key", func(o *fakeObjects) { o.put(configMap("app"), "b", "2") }, "references non-existent config key: a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1", "sources", "[{configMap: {name: app, items: [{key: a, path: a}]}}]")
				e.publish(r)
				test.remove(e.objects)
				e.settle()
				e.objects.takeReads(configMap("app"))
				after(10 * testResync)
				if n := len(e.objects.takeReads(configMap("app"))); n > 10 {
					t.Errorf("it was read %d times, which is more than the resync", n)
				}
				e.wantFiles(r, "a", "1")
				e.wantProblem(r, strings.TrimPrefix(test.problem, "items: "))
				if n := e.mounts.count("Reopen"); n != 0 {
					t.Errorf("the mount was opened %d times", n)
				}
				lines := e.logs.with("Volume does not show what it should", `volumeID="v1"`, `pod="shop/pod-v1"`)
				if len(lines) != 1 {
					t.Errorf("logged %d times: %q", len(lines), lines)
				}
				e.publish(r) // as after a restart of the kubelet: the pod goes on

				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantFiles(r, "a", "2")
				e.wantProblem(r, "")
				if lines := e.logs.with("Volume is current again"); len(lines) != 1 {
					t.Errorf("logged %d times: %q", len(lines), lines)
				}
			})
		})
	}
}

func TestOneChangeOfConditionIsLoggedOnce(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		var tries atomic.Int64
		e.writes.set(func() error {
			return fmt.Errorf("create generation ..%d: %w", tries.Add(1), unix.ENOSPC)
		}, nil)
		e.objects.put(configMap("app"), "a", "2")
		after(testResync)
		e.settle()
		n := tries.Load()
		if n < 10 {
			t.Fatalf("%d writes only", n)
		}
		if lines := e.logs.with("Volume does not show what it should"); len(lines) != 1 {
			t.Errorf("logged %d times: %q", len(lines), lines)
		}
		e.wantProblem(r, fmt.Sprintf("..%d: no space left", n)) // but the condition has the latest text
		e.writes.set(func() error { return unix.EIO }, nil)
		after(testResync)
		e.objects.remove(configMap("app"))
		e.settle()
		if lines := e.logs.with("Volume does not show what it should"); len(lines) != 3 {
			t.Errorf("three conditions were logged %d times: %q", len(lines), lines)
		}
	})
}

func TestAnUnknownStateIsNoProblem(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		e.objects.takeReads(configMap("app"))
		after(5 * time.Second)
		if n := len(e.objects.takeReads(configMap("app"))); n > 0 {
			t.Errorf("it was polled %d times", n)
		}
		e.objects.failWith(configMap("app"), nil)
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}

func TestFilesNeverGoBackOverARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "old")
		old := e.objects.get(configMap("app"))
		e.objects.put(configMap("app"), "a", "shown")
		r := e.request("v1")
		e.publish(r)
		e.halt()
		e.objects.restore(old) // an API server that lags behind
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "shown")
		e.wantProblem(r, `the API server's answer for ConfigMap "shop/app" is older than what the files show`)
		if got := e.recorded(r)[configMap("app")].ResourceVersion; got == old.ResourceVersion {
			t.Error("the record went back")
		}
		e.objects.put(configMap("app"), "a", "new")
		e.settle()
		e.wantFiles(r, "a", "new")
		e.wantProblem(r, "")
	})
}

// What is written to where nothing is mounted lands on the node's disk.
func TestAMountThatIsGoneIsNotWrittenTo(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		dir := e.mounts.vanish(r.Target)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		if e.mounts.count("Reopen") != 1 {
			t.Error("it was not looked at")
		}
		if got := readFiles(t, dir); got["a"] != "1" {
			t.Errorf("it was written to: %v", got)
		}
		if len(e.objects.registrations()) > 0 || e.used() != 0 {
			t.Error("the volume was not dropped")
		}
		if lines := e.logs.with("no longer mounted", `volumeID="v1"`); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		e.unpublish(r)
	})
}

// A drop and the next publish of the same id must not undo each other's doing. The
// publish comes while the drop is at work.
func TestADropDoesNotTouchTheNextPublish(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.mounts.vanish(r.Target)
		var next <-chan error
		e.mounts.on("Reopen", func() error {
			e.mounts.on("Reopen", nil)
			next = e.publishing(r)
			return mount.ErrNotMounted
		})
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		if err := <-next; err != nil {
			t.Fatal(err)
		}
		if n := len(e.objects.registrations()); n != 1 {
			t.Errorf("%d registrations", n)
		}
		if got := e.recorded(r)[configMap("app")]; got != e.objects.get(configMap("app")).Version {
			t.Errorf("the record says %v", got)
		}
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		e.wantFiles(r, "a", "3")
	})
}

// kind is that of an error.
func kind(err error) string { return outcomeOf(err).kind() }

func TestKindOfError(t *testing.T) {
	a := fail(ReasonNodeFull, "the node's other volumes 1")
	b := fail(ReasonNodeFull, "the node's other volumes 2")
	if kind(a) != kind(b) {
		t.Error("the same reason with another text is news")
	}
	refusal := error(&refusedError{})
	if kind(refusal) == kind(errors.Join(fail(ReasonTooLarge, "x"), refusal)) {
		t.Error("another failure beside a refusal is no news")
	}
	for i, err := range []error{a, errStale, errFault, unix.ENOSPC, fmt.Errorf("x: %w", unix.EIO), fail(ReasonTooLarge, "x")} {
		for j, other := range []error{a, errStale, errFault, unix.ENOSPC, fmt.Errorf("y: %w", unix.EIO), fail(ReasonTooLarge, "y")} {
			if (kind(err) == kind(other)) != (i == j) {
				t.Errorf("%q and %q", kind(err), kind(other))
			}
		}
	}
}

func TestStats(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		_, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, ReasonNotFound, "volume v1 is not published at "+r.Target)
		e.publish(r)
		stats, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		if err != nil || stats.Capacity != limitsFor(mebibyte).mountBytes || stats.Used != 4096 {
			t.Errorf("got %+v, %v", stats, err)
		}
		_, err = e.p.Stats(e.ctx, r.VolumeID, strings.Replace(r.Target, "/settings/", "/other/", 1))
		e.wantReason(err, ReasonNotFound, "")
		e.mounts.failAt("Open", errFault)
		if _, err = e.p.Stats(e.ctx, r.VolumeID, r.Target); !errors.Is(err, errFault) || ReasonOf(err) != 0 {
			t.Errorf("got %v", err)
		}
		e.mounts.failAt("Open", nil)
		e.mounts.vanish(r.Target)
		_, err = e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, ReasonNotFound, "volume v1 is not mounted at "+r.Target+": not mounted")
	})
}
