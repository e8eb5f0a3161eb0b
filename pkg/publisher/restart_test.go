package publisher

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
)

// TestNothingElseIsDerived: a volume waits for the kubelet if the pod's spec does not show what was requested. Its files stay, and an
// unpublish works.
func TestNothingElseIsDerived(t *testing.T) {
	inline := func(change func(*pod.InlineVolume)) func(e *env, r binding.Request) {
		return func(e *env, r binding.Request) {
			e.pods.change(r, func(says *pod.Spec) {
				v := says.Inline["settings"]
				change(&v)
				says.Inline["settings"] = v
			})
		}
	}
	for name, test := range map[string]struct {
		change func(e *env, r binding.Request)
		event  string
	}{
		"the pod is gone":         {func(e *env, r binding.Request) { e.pods.fail(r, errNoPod) }, ""},
		"the driver is another":   {inline(func(v *pod.InlineVolume) { v.Driver = "csi.other" }), "VolumeUpdateFailed: the pod "},
		"no volume of that name":  {func(e *env, r binding.Request) { e.pods.change(r, func(says *pod.Spec) { says.Inline = nil }) }, "VolumeUpdateFailed: the pod "},
		"the attributes are bad":  {inline(func(v *pod.InlineVolume) { v.Attributes = map[string]string{"noSuchThing": "1"} }), "VolumeUpdateFailed: "},
		"it may be written to":    {inline(func(v *pod.InlineVolume) { v.ReadOnly = false }), "VolumeUpdateFailed: readOnly: "},
		"the volume names no pod": {func(e *env, r binding.Request) { e.setAttribute(e.mounts.Directory(r.Target), "pod", "../x") }, ""},
	} {
		inBubbleOf(t, name, func(e *env) {
			r := e.publishApp()
			test.change(e, r)
			e.restart()
			e.objects.put(configMap("app"), "a", "2")
			e.wait(10 * time.Minute)
			e.wantFiles(r, "a", "1")
			e.wantBetween("asked %d times", len(strings.Fields(e.pods.takeReads())), 0, 2)
			if test.event == "" {
				e.wantEvents()
			} else {
				e.wantEvents(test.event)
			}
			e.end(r)
		})
	}
}

// TestTheIDNamesTheTarget: a mount is taken over only if its ID, if it has the kubelet's form, belongs to the target's pod and volume.
// Another volume's mount there stays as it is.
func TestTheIDNamesTheTarget(t *testing.T) {
	for name, shown := range map[string]string{"settings": "2", "other": "1"} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.put(configMap("app"), "a", "1")
			r := e.request("v1")
			r.VolumeID = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(r.Pod.UID)+name)))
			e.publish(r)
			e.restart()
			e.update(configMap("app"), "a", "2")
			e.wantFiles(r, "a", shown)
			if name == "settings" {
				e.wantEvents()
			} else {
				e.wantEvents("VolumeUpdateFailed: the volume mounted at ")
			}
			e.end(r)
		})
	}
}

// A volume's memory counts from the moment at which this process finds it, even if its pod or its objects cannot be read, so that nothing
// can write it.
func TestAVolumeTakenOverCounts(t *testing.T) {
	const size = 5
	const last = "with the generation before, which goes soon"
	// These restart the publisher.
	for name, then := range map[string]func(e *env, r binding.Request){
		"by its pod's spec": func(e *env, _ binding.Request) { e.restart() },
		"not yet":           func(e *env, _ binding.Request) { e.restartUnread() },
		"by a publish": func(e *env, r binding.Request) {
			e.restartUnread()
			e.publish(r)
		},
		"when it could be read at the second try": func(e *env, _ binding.Request) {
			e.mounts.failAt("Open", errFault)
			e.restart()
			e.mounts.failAt("Open", nil)
			after(10 * time.Second)
		},
		"with a lower limit": func(e *env, _ binding.Request) {
			e.opts.MaxVolumeSize = pageSize
			e.restart()
		},
		last: func(e *env, _ binding.Request) {
			e.objects.failWith(configMap("app"), nil)
			e.update(configMap("app"), "a", pages(size)+"x")
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			e.restart()
		},
	} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.put(configMap("app"), "a", pages(size))
			r := e.publishNew("v1")
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			then(e, r)
			e.rest()
			e.wantUsed(map[bool]int64{false: taken(size, 1), true: taken(size+1, 1)}[name == last])
			e.publish(r)
			e.objects.failWith(configMap("app"), nil)
			e.objects.put(configMap("app"), "a", "")
			e.rest()
			e.wantUsed(taken(0, 1))
			e.end(r)
		})
	}
}

func TestTakeovers(t *testing.T) { each(t, inBubble, takeoversTests) }

var takeoversTests = map[string]func(e *env){
	"restore unmounts only what nobody will unpublish": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		known, orphan, waiting := e.request("v1"), e.request("v2"), e.request("v3")
		e.publish(known, orphan, waiting)
		e.halt()
		e.pods.fail(waiting, errNoPod)
		e.must(os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods", string(orphan.Pod.UID))))
		e.resume()
		if got := e.mounts.Targets(); !slices.Equal(got, []string{known.Target, waiting.Target}) {
			e.Errorf("mounted are %v", got)
		}
		e.wantLines(1, "Unmounted a volume whose pod is gone", `volumeID="v2"`)
		e.wantLines(1, "until the kubelet publishes it again", `volumeID="v3"`)
	},
	// A container that keeps the plugin from opening its volume delays only its own pod. Once the volume can be opened, it is taken over
	// as usual.
	"a hanging volume holds up no start": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		hangs, other := e.request("hangs"), e.request("other")
		e.publish(hangs, other)
		e.halt()
		released := make(chan struct{})
		e.mounts.on("Open", func(target string) error {
			if target == hangs.Target {
				<-released
			}
			return nil
		})
		e.restart() // Restore has returned
		e.publish(e.request("new"))
		e.updateApp(other, "a", "2")
		e.wantFiles(hangs, "a", "1")
		e.publish(hangs) // the kubelet's republish makes no second mount
		close(released)
		synctest.Wait()
		e.rest()
		e.wantFiles(hangs, "a", "2")
		e.wantBetween("%d mounts were made", e.mounts.count("Create"), 3, 3)
	},
	"the request is derived: a later publish by the kubelet finds no difference": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		group := int64(2000)
		r := e.request("v1", "configMap", "app", "defaultMode", "0400")
		r.FSGroup, r.Pod.ServiceAccount = &group, "web"
		e.publish(r)
		e.pods.change(r, func(says *pod.Spec) {
			inline := says.Inline["settings"]
			inline.Attributes = map[string]string{"configMap": "app", "defaultMode": "0400", "csi.storage.k8s.io/pod.uid": "of the author"}
			says.Inline["settings"] = inline
		})
		e.resume()
		derived := *e.lookup("v1").wanted.request
		if what := derived.Differs(&r); what != "" || derived.Pod != r.Pod || *derived.FSGroup != group || derived.VolumeID != r.VolumeID {
			e.Errorf("the derived request is %+v (another %s), want %+v", derived, what, r)
		}
		other := r
		other.Pod.ServiceAccount = "another"
		for i, again := range []binding.Request{r, other} {
			e.publish(again)
			e.settle()
			e.wantLines(i, "not the one that was derived")
			e.resume()
		}
	},
	"volumes that cannot be taken over, and pods that may not be read, don't delay other volumes": func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		all := e.publishMany(40)
		bad, unread := all[:3], all[3:6]
		for _, r := range unread {
			e.pods.fail(r, errForbiddenObject)
		}
		e.mounts.on("Open", func(target string) error {
			if slices.ContainsFunc(bad, func(r binding.Request) bool { return r.Target == target }) {
				return errFault
			}
			return nil
		})
		e.restart()
		after(time.Minute)
		e.update(configMap("app"), "a", "2")
		e.wantFilesOf(all[6:], "a", "2")
		e.mounts.on("Open", nil)
		e.wait(3 * testResync)
		e.wantFilesOf(bad, "a", "2")
		e.wantFilesOf(unread, "a", "1")
	},
	"the ID of a mounted volume stands for that volume": func(e *env) {
		r := e.publishApp()
		e.restartUnread()
		elsewhere := r
		elsewhere.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.makeTarget(elsewhere)
		e.wantReason(e.p.Publish(e.ctx, elsewhere), failure.ReasonExists, "volume v1 is published already, with another target path")
		e.end(r)
	},
	"the kubelet's own request decides, even if it comes while the API server is asked": func(e *env) {
		r := e.publishApp()
		e.pods.setSlow(endless)
		e.resume()
		e.publish(r)
		v := e.lookup("v1")
		e.pods.setSlow(0)
		after(time.Minute)
		if v == nil || e.lookup("v1") != v || v.wanted.request.Derived {
			e.Error("the volume was taken over once more")
		}
		e.end(r)
	},
}

func TestTheKubeletsDirectoryMayBeSpelledBadly(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.KubeletDir += "/./" }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}
