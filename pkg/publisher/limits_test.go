package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// The units of a volume's memory; see package room.
const (
	pageSize  = 4096
	inodeSize = 1024
)

// pages returns a value that needs n pages.
func pages(n int) string { return strings.Repeat("x", n*pageSize) }

// keys returns n keys with empty values.
func keys(n int) (pairs []string) {
	for i := range n {
		pairs = append(pairs, fmt.Sprint("k", i), "")
	}
	return pairs
}

// taken returns what a volume counts whose files need so many pages, without directories or long names. A file needs an inode and its link
// another. Three are for the root, the generation and ..data.
func taken(pages, files int) int64 { return int64(pages)*pageSize + int64(3+2*files)*inodeSize }

func TestLimits(t *testing.T) { each(t, inBubble, limitsTests) }

var limitsTests = map[string]func(e *env){
	"an update may not bring more files than a new volume may have": func(e *env) {
		r := e.publishApp()
		e.update(configMap("app"), keys(int(e.p.limits.Files)+1)...)
		e.wantProblem(r, "Too many: the volume may show 256 keys")
		e.wantFiles(r, "a", "1")
	},
	"an update over the limit keeps the files": func(e *env) {
		r := e.publishApp()
		e.writes.set(func() error { return errors.New("nothing should be written") }, nil)
		e.objects.put(configMap("app"), "a", pages(257))
		after(2 * testResync)
		e.writes.set(nil, nil)
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "more than the 1048576 bytes")
		e.wantUsed(taken(1, 1))
		// Without a change no retry can succeed, so only the resync retries.
		e.wantBetween("it was tried %d times", e.mounts.count("Reopen"), 0, 3)
		e.publish(r)
		e.updateApp(r, "a", pages(200))
		e.wantProblem(r, "")
		e.updateApp(r, "a", pages(250)) // memory of superseded generations does not let a larger update through
		e.update(configMap("app"), "a", pages(300))
		e.wantFiles(r, "a", pages(250))
		e.wantProblem(r, "more than the 1048576 bytes")
	},
	"the count follows what is written, over updates, failures and restarts, and ends at zero": func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]")
		want := func(bytes int64) {
			e.Helper()
			e.settle()
			e.rest()
			e.wantUsed(bytes)
		}
		e.objects.put(configMap("app"), "a", "1", "b", pages(1)+"x", "c", "")
		e.publish(r)
		want(taken(3, 3))
		e.objects.put(secret("db"), "password", "x")
		want(taken(4, 4))
		e.restart()
		want(taken(4, 4))
		e.objects.put(configMap("app"), "a", "1")
		want(taken(2, 2))

		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(configMap("app"), "a", pages(10))
		want(taken(2, 2))
		e.writes.set(nil, nil)
		after(retryMax)
		want(taken(11, 2))

		e.end(r)
	},
	"while there is no place to render, a publish waits, until an unpublish, its deadline or the end of the plugin": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		free := e.fill()
		first, second := e.request("v1"), e.request("v2")
		unpublished, waiting := e.publishing(first), e.publishing(second)
		e.wantWaiting(unpublished, waiting)
		began := time.Now()
		if e.unpublish(first); time.Since(began) > 0 { // its reconcile is under way, and is cancelled
			e.Errorf("the unpublish took %s", time.Since(began))
		}
		e.wantReason(<-unpublished, failure.ReasonBusy, "volume v1: "+errUnpublished.Error())
		free()
		e.wantDone(waiting)
		e.wantFree()

		free = e.fill()
		e.wantReason(e.p.Publish(e.ctx, first), failure.ReasonUnavailable, failure.ErrCrowded.Error())
		stopped := e.waiting(first)
		e.p.StopWaiting()
		e.wantReason(<-stopped, failure.ReasonUnavailable, "volume v1: "+errStopping.Error())
		free()
		e.wantFree()
		e.unpublish(second)
	},
	"an object that isn't cached fails a publish at once, even if other objects are unknown, and nothing remains": func(e *env) {
		e.objects.failWith(configMap("app"), fmt.Errorf("app: %w", manager.ErrNotSynced))
		full := &manager.FullError{Ref: secret("db"), Size: 700, Others: 301, Max: 1000}
		e.objects.failWith(secret("db"), full)
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]")
		const format = `Secret "shop/db" takes 700 bytes of memory, the node's other objects %d, together more than 1000 (--max-cached-size)`
		text := fmt.Sprintf(format, 301)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonCacheFull, text)
		e.wantEvents(r.Pod.String() + ": VolumeUpdateFailed: " + text)
		full.Others = 302
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonCacheFull, fmt.Sprintf(format, 302))
		e.wantEvents("VolumeUpdateFailed") // client-go merges the others
		e.wantNothing()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "b", "2")
		e.objects.failWith(configMap("app"), nil)
		e.objects.failWith(secret("db"), nil)
		e.publish(r)
		e.end(r)
	},
	"the objects of a mounted volume may use any memory: from the moment it is mounted, and after a restart from the start": func(e *env) {
		r := e.request("v1", "configMap", "app")
		waiting := e.waiting(r)
		e.wantKept(r, false)
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(waiting)
		e.wantKept(r, true)
		kept := false
		e.objects.onRegister = func() { kept = e.objects.isKept(r.Pod, r.VolumeID) }
		e.resume()
		e.wantKept(r, true)
		if !kept {
			e.Error("the restarted plugin registered a mounted volume as a new one")
		}
	},
	// The volumes of a pod may name 1,024 objects together, counted for each volume. A pod that has fewer is not concerned, and neither is
	// another pod.
	"a pod's objects are bounded": func(e *env) {
		all := e.inOnePod("v", 5, "sources", optionalObjects("a", 256))
		e.publish(all[:4]...)
		e.wantReason(e.p.Publish(e.ctx, all[4]), failure.ReasonInvalid,
			"Too many: the volume names 256 ConfigMaps and Secrets, the pod's other volumes 1024, and all volumes of a pod may name 1024: 0 are left; each counts once for each volume that names it: show objects in fewer volumes")
		e.wantBetween("%d volumes are registered", len(e.objects.registrations()), 4, 4)
		e.publish(e.request("other", "sources", optionalObjects("a", 256)))
		e.publish(all[0]) // a republish
		e.unpublish(all[0])
		e.publish(all[4])
		raced := e.inOnePod("raced", 8, "sources", optionalObjects("a", 256))
		e.publish(raced[:3]...)
		var answers []<-chan error
		for _, r := range raced[3:] {
			answers = append(answers, e.publishing(r))
		}
		published := 0
		for _, answer := range answers {
			if <-answer == nil {
				published++
			}
		}
		e.wantBetween("%d volumes are published at once where one fits", published, 1, 1)
	},
}

func TestTheNodesTotal(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = 2 * mebibyte }, func(e *env) {
		e.objects.put(configMap("large"), "a", pages(200))
		first, second, third := e.request("v1", "configMap", "large"), e.request("v2", "configMap", "large"), e.request("v3", "configMap", "large")
		e.publish(first, second)
		e.wantReason(e.p.Publish(e.ctx, third), failure.ReasonNodeFull,
			"the files and their inodes take 827392 bytes of memory, the node's other volumes 1648640, together more than 2097152 (--max-total-size)")
		e.wantUsed(2 * taken(200, 1))

		// An update counts instead of what it replaces.
		e.objects.put(configMap("large"), "a", pages(250))
		e.wait(retryMax) // one may have to wait for what the other one supersedes
		e.wantFiles(first, "a", pages(250))
		e.wantFiles(second, "a", pages(250))

		// One of two updates finds the node full. It is retried until there is room.
		e.objects.put(configMap("small"), "a", "1")
		small := e.publishNew("v4", "configMap", "small")
		e.update(configMap("small"), "a", pages(100))
		e.wantProblem(small, "together more than")
		e.wantFiles(small, "a", "1")
		e.unpublish(first)
		after(retryMax)
		e.wantFiles(small, "a", pages(100))
		e.wantProblem(small, "")
		e.rest()
		e.wantUsed(taken(250, 1) + taken(100, 1))
		e.end(second, small)
	})
}

// When the node is full, the volumes are measured at once. Files that readers have closed no longer count, so the kubelet's next try
// succeeds.
func TestAFullNodeIsMeasured(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		first, second := e.request("v1"), e.request("v2")
		e.publish(first)
		e.mounts.hold(first.Target, mebibyte)
		e.objects.put(configMap("app"), "a", "2")
		e.rest()
		e.mounts.hold(first.Target, 0)
		e.wantReason(e.p.Publish(e.ctx, second), failure.ReasonNodeFull, "")
		synctest.Wait()
		e.publish(second)
	})
}

// TestAFullNodeIsNoBusyLoop: volumes that find no room make others measure, and are not retried more often for that.
func TestAFullNodeIsNoBusyLoop(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = 2 * mebibyte }, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(10))
		first, second := e.request("v1"), e.request("v2")
		e.publish(first, second)
		hold := func(bytes int64) {
			e.mounts.hold(first.Target, bytes)
			e.mounts.hold(second.Target, bytes)
		}
		hold(mebibyte)
		e.objects.put(configMap("app"), "a", pages(9))
		e.rest()
		var measured atomic.Int32
		e.mounts.on("Usage", func(string) error {
			if measured.Add(1) == 1000 { // a busy loop would never end on fake time
				hold(0)
			}
			return nil
		})
		e.objects.put(configMap("app"), "a", pages(252))
		e.wait(30 * time.Second)
		e.wantProblem(first, "together more than")
		if n := measured.Load(); n > 100 {
			t.Errorf("measured %d times in 30 s", n)
		}
		hold(0)
		e.wait(2 * retryMax)
		e.wantFiles(first, "a", pages(252))
		e.wantFiles(second, "a", pages(252))
	})
}

// fill takes all places for renders until the returned function is called.
func (e *env) fill() (free func()) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, time.Millisecond)
	defer cancel()
	end := make(chan struct{})
	taken := make(chan bool, atOnce)
	for range atOnce {
		go func() {
			if e.p.bindings.InTurn(ctx, func() { taken <- true; <-end }) != nil {
				taken <- false
			}
		}()
	}
	for range atOnce {
		if !<-taken {
			e.Fatal("places are taken")
		}
	}
	return func() { close(end); synctest.Wait() }
}

// wantFree fails the test unless all places are free again.
func (e *env) wantFree() {
	e.Helper()
	synctest.Wait()
	e.fill()()
}

func (e *env) wantKept(r binding.Request, want bool) {
	e.Helper()
	e.settle()
	wantIs(e, "its objects are kept: %v", e.objects.isKept(r.Pod, r.VolumeID), want)
}

// New names each option that it can't use.
func TestOptionsThatAreRefused(t *testing.T) {
	whole := newEnv(t, nil).opts
	if _, err := New(whole); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Options){
		"ResyncInterval: Invalid value: 0s: must be positive":                                 func(o *Options) { o.ResyncInterval = 0 },
		"PublishWait: Invalid value: -1ns: must not be negative":                              func(o *Options) { o.PublishWait = -1 },
		"MaxVolumeSize: Invalid value: 0: must be positive":                                   func(o *Options) { o.MaxVolumeSize = 0 },
		"MaxTotalSize: Invalid value: 1048575: must not be less than MaxVolumeSize (1048576)": func(o *Options) { o.MaxTotalSize = mebibyte - 1 },
		`KubeletDir: Invalid value: "lib/kubelet": must be an absolute path`:                  func(o *Options) { o.KubeletDir = "lib/kubelet" },
		"Driver: Required value":   func(o *Options) { o.Driver = "" },
		"NodeName: Required value": func(o *Options) { o.NodeName = "" },
	} {
		opts := whole
		spoil(&opts)
		if _, err := New(opts); err == nil || err.Error() != "publisher options: "+want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestDocumentedLimits(t *testing.T) {
	doclines.Says(t, "../../docs/limits.md", fmt.Sprintf("less where there is no room | %v to %v s |", pruneTime.Seconds(), 3*pruneTime.Seconds()))
}
