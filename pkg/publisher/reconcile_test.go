package publisher

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
)

func TestOneChangeOfConditionIsLoggedOnce(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		var tries atomic.Int64
		e.writes.set(func() error {
			return fmt.Errorf("create generation ..%d: %w", tries.Add(1), unix.ENOSPC)
		}, nil)
		e.objects.put(configMap("app"), "a", "2")
		e.wait(testResync)
		n := tries.Load()
		if n < 10 {
			t.Fatalf("%d writes only", n)
		}
		e.wantLines(1, "Volume does not show what it should")
		e.wantProblem(r, fmt.Sprintf("..%d: no space left", n)) // but the condition has the latest text
		e.writes.set(func() error { return unix.EIO }, nil)
		after(testResync)
		e.remove(configMap("app"))
		e.wantLines(3, "Volume does not show what it should")
		e.writes.set(nil, nil)
		e.objects.put(configMap("app"), "a", "3")
		after(testResync)
		e.wantLines(1, "Volume is current again")
	})
}

func TestStats(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		_, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, failure.ReasonNotFound, "volume v1 is not published at "+r.Target)
		e.publish(r)
		stats, err := e.p.Stats(e.ctx, r.VolumeID, r.Target)
		if err != nil || stats.Capacity != e.p.limits.MountBytes || stats.Used != 4096 {
			t.Errorf("got %+v, %v", stats, err)
		}
		_, err = e.p.Stats(e.ctx, r.VolumeID, strings.Replace(r.Target, "/settings/", "/other/", 1))
		e.wantReason(err, failure.ReasonNotFound, "")
		e.mounts.failAt("Open", errFault)
		if _, err = e.p.Stats(e.ctx, r.VolumeID, r.Target); !errors.Is(err, errFault) || failure.ReasonOf(err) != 0 {
			t.Errorf("got %v", err)
		}
		e.mounts.failAt("Open", nil)
		e.mounts.vanish(r.Target)
		_, err = e.p.Stats(e.ctx, r.VolumeID, r.Target)
		e.wantReason(err, failure.ReasonNotFound, "volume v1 is not mounted at "+r.Target+": not mounted")
	})
}

// TestALostMountBesideARefusal is examined at once, as any other.
func TestALostMountBesideARefusal(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.status().Condition == failure.RefForbidden })
		e.rest()
		e.mounts.vanish(r.Target)
		e.update(configMap("app"), "a", "2")
		if e.lookup(r.VolumeID) != nil {
			t.Error("the volume is still known")
		}
	})
}

// TestALookThatCannotReadTheRecord leaves the volume bound to its request and its objects.
func TestALookThatCannotReadTheRecord(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.mounts.failAt("Reopen", mount.ErrNotMounted) // so it is looked at what is mounted
		e.mounts.setUnreadable(true)
		e.update(configMap("app"), "a", "2")
		e.wantProblem(r, "read the record of volume v1")
		if !e.objects.isRegistered(configMap("app")) {
			t.Error("the volume's object is not registered any more")
		}
		e.mounts.failAt("Reopen", nil)
		e.mounts.setUnreadable(false)
		e.rest()
		e.wantFiles(r, "a", "2")
	})
}
