package manager

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	errForbidden    = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no more"))
	errUnauthorized = apierrors.NewUnauthorized("the token is no good")
)

func (e *env) refuseAll(err error) { e.refuse(err, func(apiRequest) bool { return true }) }

func (e *env) refuse(err error, matches func(r apiRequest) bool) {
	e.api.set(func() {
		e.api.refuse = func(r apiRequest) error {
			if matches(r) {
				return err
			}
			return nil
		}
	})
}

// answerWith is like refuseAll, and ends the watches, which would otherwise continue.
func (e *env) answerWith(err error) {
	e.refuseAll(err)
	e.api.closeWatches()
}

// ask waits until a few requests were sent, for any change detection.
func (e *env) ask(ref volume.Ref) {
	for range 2 {
		after(maxAge)
		e.refresh(ref)
		_, _ = e.GetObject(ref) // as a resync does, so that it is never idle
	}
}

func (e *env) wantDenied(ref volume.Ref, want bool) {
	e.t.Helper()
	err := e.DenialErr(ref)
	if (err != nil) != want || want && !isRefusal(err) {
		e.t.Errorf("DenialErr(%s) = %v, want one: %t", ref, err, want)
	}
}

// TestRefusals: an object that may not be read any more, or not with the plugin's own token, stays, and the refusal is reported until requests
// succeed again. The subscriber is called once at the start and once at the end.
func TestRefusals(t *testing.T) {
	for _, err := range []error{errForbidden, errUnauthorized} {
		inEachBubble(t, func(t *testing.T, e *env) {
			ref := secretRef("a")
			v := e.api.put(secret("a", "1"))
			e.known(ref)
			e.wantDenied(ref, false)
			e.answerWith(err)
			reported := 0
			for range 3 {
				e.ask(ref)
				reported += e.changes(ref)
				e.wantDenied(ref, true)
				e.wantKnown(ref, v, "1")
			}
			e.answerWith(syscall.ECONNREFUSED) // says nothing about rights
			e.ask(ref)
			e.wantDenied(ref, true)
			e.answerWith(nil)
			e.ask(ref)
			if n := e.changes(ref); reported != 1 || n != 1 {
				t.Errorf("%d changes were reported, and %d after the rights were given back, want 1 each", reported, n)
			}
			e.wantDenied(ref, false)
			e.wantKnown(ref, v, "1")
			e.UnregisterPod(pod("first"), "v")
			e.wantDenied(ref, false)
		})
	}
}

// TestAWatchThatContinuesIsAllowed: an account may list, and gets the right to watch. The watch that continues after the list shows it.
func TestAWatchThatContinuesIsAllowed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.refuse(errForbidden, func(r apiRequest) bool { return r.watch })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(denialTime + maxOwnPause)
		e.wantStatus(Denied, v, time.Since(e.status().LastConfirmed), true)
		e.changes(ref)
		e.refuse(errForbidden, func(r apiRequest) bool { return r.watch && r.initial })
		for e.wantDenied(ref, true); e.api.watches(ref) == 0; after(10 * time.Millisecond) {
		}
		e.wantStatus(Present, v, time.Since(e.status().LastConfirmed), true)
		if e.status().Stale {
			t.Error("the object is stale")
		}
		if n := e.changes(ref); n != 1 {
			t.Errorf("%d changes were reported, want 1", n)
		}
	})
}

// A refused token of a pod is replaced by the kubelet at the next republish. Only a longer refusal counts.
func TestTokensOfPodsAreRefused(t *testing.T) {
	inBubbleWith(t, Options{ChangeDetection: Watch, Accounts: true}, func(_ *testing.T, e *env) {
		ref, pod := secretRef("db"), podOf("a1", "a")
		e.api.put(secret("db", "v1"))
		e.RegisterPod(pod, "v", []volume.Ref{ref})
		e.wantValue(pod, ref, "v1")
		e.changes(ref)
		e.answerWith(errUnauthorized)
		const renewed = 2 * time.Minute // the kubelet has brought another token by then
		after(renewed)
		if err := e.Manager.DenialErr(pod, ref); err != nil || e.changes(ref) != 0 {
			e.t.Errorf("too early: %v", err)
		}
		after(tokenTime - renewed + 3*maxBackoff)
		if err := e.Manager.DenialErr(pod, ref); !apierrors.IsUnauthorized(err) || e.changes(ref) != 1 {
			e.t.Errorf("DenialErr = %v after %s", err, tokenTime)
		}
		_, _ = e.Manager.GetObject(pod, ref) // as a resync does
		e.answerWith(nil)
		after(3 * maxBackoff)
		if err := e.Manager.DenialErr(pod, ref); err != nil || e.changes(ref) != 1 {
			e.t.Errorf("DenialErr = %v once the token is good again", err)
		}
	})
}

// A short refusal, as by a server that has just started, is no denial, and neither is another failure.
func TestOtherFailuresAreNoDenial(t *testing.T) {
	for _, err := range []error{
		syscall.ECONNREFUSED, apierrors.NewTooManyRequestsError("later"),
		apierrors.NewInternalError(errors.New("etcd")),
		// from a proxy that has lost the API server
		apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "secrets"}, "a", "default backend - 404", 0, true),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				v := e.api.put(secret("a", "1"))
				e.known(ref)
				for range 3 {
					e.answerWith(errForbidden)
					after(denialTime / 2)
					e.answerWith(err)
					e.ask(ref)
					e.wantDenied(ref, false)
				}
				e.answerWith(nil)
				e.ask(ref)
				if n := e.changes(ref); n != 0 {
					t.Errorf("%d changes were reported", n)
				}
				e.wantKnown(ref, v, "1")
			})
		})
	}
}

// hundred returns the names of 100 objects, half of each kind.
func hundred() []volume.Ref {
	refs := make([]volume.Ref, 0, 100)
	for i := range 50 {
		name := fmt.Sprint("o-", i)
		refs = append(refs, secretRef(name), configMapRef(name))
	}
	return refs
}

// readFor lets time pass, and reads refs each minute, as resyncs do.
func (e *env) readFor(d time.Duration, refs []volume.Ref) {
	e.t.Helper()
	for range int(d / time.Minute) {
		after(time.Minute)
		for _, ref := range refs {
			_, _ = e.GetObject(ref)
		}
	}
}

// An outage of all objects is logged in a line or two. A failure of one object is logged once, however long it lasts. Answers of a busy API
// server are not logged, because it may send them for all objects to all nodes. A pod whose objects all fail fills no log: above a number of
// lines a minute they are left out, and one line says how many.
func TestTheLogTellsAFailureOnce(t *testing.T) {
	for name, test := range map[string]struct {
		err       error
		isLimited bool
		lines     int
		says      string
	}{
		"an outage":       {syscall.ECONNREFUSED, false, 20, "connection refused"},
		"a refused token": {errUnauthorized, false, 20, "401 Unauthorized"},
		"busy":            {apierrors.NewTooManyRequests("later", 20), false, 0, ""},
		"each is refused": {errForbidden, false, 100, "no more"},
		"each fails":      {apierrors.NewInternalError(errors.New("etcd")), false, 100, "Internal error"},
		"limited":         {errForbidden, true, 60, "were left out"},
	} {
		t.Run(name, func(t *testing.T) {
			log := captureLog(t)
			synctest.Test(t, func(t *testing.T) {
				var limit *loglimit.Limiter
				leftOut := 0
				if test.isLimited {
					limit = loglimit.New(klog.Background(), func() { leftOut++ })
					defer limit.Close()
				}
				e := newEnv(t, Options{ChangeDetection: Watch, LogLimit: limit})
				e.RegisterPod(pod("p"), "v", hundred())
				after(time.Minute)
				e.answerWith(test.err)
				after(3 * time.Minute)
				e.answerWith(nil)
				after(time.Minute)
				e.stop()
				if (leftOut >= 40) != test.isLimited {
					t.Errorf("%d lines are left out", leftOut)
				}
			})
			text := log.String()
			if n := strings.Count(text, "\n"); n > test.lines+2 || (n == 0) != (test.lines == 0) || !strings.Contains(text, test.says) {
				t.Errorf("%d lines, want %d and %q:\n%s", n, test.lines, test.says, text)
			}
		})
	}
}

func captureLog(t *testing.T) *leak.Log {
	t.Helper()
	t.Cleanup(klog.CaptureState().Restore)
	log := &leak.Log{}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))))
	return log
}
