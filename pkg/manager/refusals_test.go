package manager

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// recoveryTime is how long after the last refusal objects may take to be current: the longest
// pause.
const recoveryTime = 2 * refusedBackoff

// inPassingBubbles is inBubble, for each change detection, with a manager whose refusals pass.
func inPassingBubbles(t *testing.T, detections []ChangeDetection, test func(t *testing.T, e *env)) {
	t.Helper()
	for _, detection := range detections {
		t.Run(string(detection), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnvWith(t, Options{ChangeDetection: detection, RefusalsPass: true})
				test(t, e)
				e.stop()
			})
		})
	}
}

// refuseLike has requests for the objects refused as a node authorizer does.
func (e *env) refuseLike(which func(volume.Ref) bool) {
	e.api.set(func() {
		e.api.refuse = func(r apiRequest) error {
			if !which(r.ref) {
				return nil
			}
			return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, r.ref.Name, errors.New("no relationship found"))
		}
	})
}

func everything(volume.Ref) bool { return true }
func nothing(volume.Ref) bool    { return false }

// TestRefusalsOfEverythingPass: an API server whose authorizer knows no pod yet is asked by
// few requests, for however many objects, and these are current soon after it does.
func TestRefusalsOfEverythingPass(t *testing.T) {
	const objects = 100
	for _, long := range []time.Duration{20 * time.Second, 90 * time.Second} {
		t.Run(long.String(), func(t *testing.T) {
			inPassingBubbles(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
				refs := secretRefs("s", objects)
				for _, ref := range refs {
					e.api.put(secret(ref.Name, "1"))
				}
				e.refuseLike(everything)
				for i, ref := range refs {
					e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
					_, _ = e.GetObject(ref) // the pollers ask when they are read
				}
				after(5 * time.Second)
				begun := len(e.asked())
				after(long)
				if n, most := len(e.asked())-begun, 10+int(long.Seconds()*(1+fewRefused)/2.5); n == 0 || n > most {
					t.Errorf("%d requests in %s, want 1 to %d", n, long, most)
				}
				e.refuseLike(nothing)
				after(recoveryTime)
				for _, ref := range refs {
					if _, err := e.GetObject(ref); err != nil {
						t.Fatalf("%s after the refusals: %v", recoveryTime, err)
					}
				}
			})
		})
	}
}

// TestRefusalsOfOpenWatches has all watches end while everything is refused, as when the API
// server restarts: what was known stays, and no object is stale for long afterwards.
func TestRefusalsOfOpenWatches(t *testing.T) {
	inPassingBubbles(t, []ChangeDetection{Watch}, func(t *testing.T, e *env) {
		refs := secretRefs("s", 100)
		for i, ref := range refs {
			e.api.put(secret(ref.Name, "1"))
			e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
		}
		after(time.Second)
		e.refuseLike(everything)
		e.api.closeWatches()
		after(50 * time.Second)
		v := e.api.put(secret(refs[7].Name, "2"))
		for _, ref := range refs {
			if err := e.Denied(ref); err != nil {
				t.Fatalf("denied within a minute: %v", err)
			}
		}
		after(30 * time.Second)
		for _, ref := range refs {
			if obj, err := e.GetObject(ref); err != nil || string(obj.Data["k"]) != "1" {
				t.Fatalf("during the refusals: %v, %v", obj, err)
			}
			if err := e.Denied(ref); !apierrors.IsForbidden(err) || strings.Count(err.Error(), ref.Name+`"`) != 2 {
				t.Fatalf("denied after a minute: %v, want a refusal that names %s only", err, ref)
			}
		}
		e.refuseLike(nothing)
		after(recoveryTime)
		e.wantGet(refs[7], v, "2")
		for _, ref := range refs {
			e.wantDenied(ref, false)
			e.wantWatches(ref, 1)
		}

		after(2 * calmTime)
		// The next refusals begin with short pauses again.
		e.refuseLike(everything)
		e.api.closeWatches()
		after(time.Second)
		e.refuseLike(nothing)
		after(4 * time.Second)
		for _, ref := range refs {
			e.wantWatches(ref, 1)
		}
	})
}

// TestFewAreLeftOfManyRefused: objects that shared a backoff go on with it when others have gone.
func TestFewAreLeftOfManyRefused(t *testing.T) {
	inPassingBubbles(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
		refs := secretRefs("s", 10)
		e.refuseLike(everything)
		for i, ref := range refs {
			e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
			_, _ = e.GetObject(ref)
		}
		after(time.Minute)
		for i := range refs[2:] {
			e.UnregisterPod(pod(fmt.Sprint("p", i)), "v")
		}
		begun := len(e.asked())
		e.api.set(func() { // a loop without a pause would never end in the bubble
			refuse, sent := e.api.refuse, 0
			e.api.refuse = func(r apiRequest) error {
				if sent++; sent > 1000 {
					<-t.Context().Done()
				}
				return refuse(r)
			}
		})
		after(time.Minute)
		if n := len(e.asked()) - begun; n == 0 || n > 40 {
			t.Errorf("%d requests for two objects in a minute", n)
		}
	})
}

// TestNoneAreLeftOfManyRefused: the backoff goes with the last of its objects, so those that come
// later don't share it until they are many themselves.
func TestNoneAreLeftOfManyRefused(t *testing.T) {
	inPassingBubbles(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
		refs := secretRefs("s", 10)
		e.refuseLike(everything)
		for i, ref := range refs {
			e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
			_, _ = e.GetObject(ref)
		}
		after(3 * time.Minute)
		for i := range refs {
			e.UnregisterPod(pod(fmt.Sprint("p", i)), "v")
		}
		after(time.Second) // nothing is under way any more
		later := secretRef("later")
		e.RegisterPod(pod("p"), "v", []volume.Ref{later})
		_, _ = e.GetObject(later)
		after(backoff.Min)
		e.refuseLike(nothing)
		after(2 * backoff.Min)
		if _, err := e.GetObject(later); !apierrors.IsNotFound(err) {
			t.Errorf("%s after its only refusal: %v, want that it is absent", 2*backoff.Min, err)
		}
	})
}

// TestAPublishOfWhatIsRefusedSaysWhy: a publish of an object that shares a backoff with others has
// the object's own refusal, also while others are asked for.
func TestAPublishOfWhatIsRefusedSaysWhy(t *testing.T) {
	inPassingBubbles(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
		refs := secretRefs("s", 50)
		e.refuseLike(everything)
		for i, ref := range refs {
			e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
			_, _ = e.GetObject(ref)
		}
		after(3 * time.Minute)
		for _, ref := range refs {
			e.RegisterPod(pod("later"), ref.Name, []volume.Ref{ref})
			_, err := e.GetObject(ref)
			if !errors.Is(err, ErrNotSynced) || !apierrors.IsForbidden(err) || strings.Count(err.Error(), ref.Name+`"`) != 2 {
				t.Fatalf("got %v, want a refusal that names %s only", err, ref)
			}
			after(10 * time.Millisecond)
		}
	})
}

// TestFewRefusalsHoldUpNobody: objects that are refused for good share their pauses with each
// other, and with nothing else.
func TestFewRefusalsHoldUpNobody(t *testing.T) {
	inPassingBubbles(t, []ChangeDetection{Watch, Cache, Get}, func(t *testing.T, e *env) {
		bad, good := secretRefs("bad", 10), secretRef("good")
		v := e.api.put(secret("good", "1"))
		e.refuseLike(func(ref volume.Ref) bool { return ref != good })
		e.RegisterPod(pod("p"), "v", bad)
		for _, ref := range bad {
			_, _ = e.GetObject(ref)
		}
		after(3 * time.Minute)
		begin := time.Now()
		e.RegisterPod(pod("p"), "w", []volume.Ref{good})
		e.wantGet(good, v, "1")
		if waited := time.Since(begin); waited > backoff.Min {
			t.Errorf("a good object of the same pod waited for %s", waited)
		}
	})
}

// TestLastingRefusalsAreLoggedOnce: objects that share a backoff are asked for minutes apart, and each has
// one line.
func TestLastingRefusalsAreLoggedOnce(t *testing.T) {
	log := captureLog(t, "0")
	inPassingBubbles(t, []ChangeDetection{Watch}, func(t *testing.T, e *env) {
		refs := secretRefs("s", 50)
		e.refuseLike(everything)
		e.RegisterPod(pod("p"), "v", refs)
		for range 120 {
			for _, ref := range refs {
				_, _ = e.GetObject(ref) // else it is idle
			}
			after(time.Minute)
		}
	})
	if lines := strings.Count(log.String(), "\n"); lines > 50 {
		t.Errorf("50 refused objects made %d lines in two hours, the last:\n%s", lines, log.String()[log.Len()-500:])
	}
}
