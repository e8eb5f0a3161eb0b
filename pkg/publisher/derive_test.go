package publisher

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/pod"
)

// TestTheRequestIsDerived: a later publish by the kubelet finds no difference.
func TestTheRequestIsDerived(t *testing.T) {
	inBubble(t, func(e *env) {
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
			t.Errorf("the derived request is %+v (another %s), want %+v", derived, what, r)
		}
		other := r
		other.Pod.ServiceAccount = "another"
		for i, again := range []binding.Request{r, other} {
			e.publish(again)
			e.settle()
			e.wantLines(i, "not the one that was derived")
			e.resume()
		}
	})
}

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
		"the pod is gone":         {func(e *env, r binding.Request) { e.pods.remove(r) }, ""},
		"the driver is another":   {inline(func(v *pod.InlineVolume) { v.Driver = "csi.other" }), "VolumeUpdateFailed: the pod "},
		"no volume of that name":  {func(e *env, r binding.Request) { e.pods.change(r, func(says *pod.Spec) { says.Inline = nil }) }, "VolumeUpdateFailed: the pod "},
		"the attributes are bad":  {inline(func(v *pod.InlineVolume) { v.Attributes = map[string]string{"noSuchThing": "1"} }), "VolumeUpdateFailed: "},
		"it may be written to":    {inline(func(v *pod.InlineVolume) { v.ReadOnly = false }), "VolumeUpdateFailed: readOnly: "},
		"the volume names no pod": {func(e *env, r binding.Request) { e.mounts.setAttribute(r.Target, "user.refvol.pod", "../x") }, ""},
	} {
		inBubbleOf(t, name, func(e *env) {
			r := e.publishApp()
			test.change(e, r)
			e.restart()
			e.objects.put(configMap("app"), "a", "2")
			e.wait(10 * time.Minute)
			e.wantFiles(r, "a", "1")
			if reads := strings.Fields(e.pods.takeReads()); len(reads) > 2 {
				e.Errorf("asked %d times", len(reads))
			}
			if test.event == "" {
				e.wantEvents()
			} else {
				e.wantEvents(test.event)
			}
			e.end(r)
		})
	}
}

// TestOneVolumeHoldsUpNoOther: volumes that cannot be taken over, and pods that may not be read, don't delay other volumes.
func TestOneVolumeHoldsUpNoOther(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		var all []binding.Request
		for i := range 40 {
			r := e.publishNew(fmt.Sprint("v", i))
			all = append(all, r)
		}
		bad, unread := all[:3], all[3:6]
		for _, r := range unread {
			e.pods.refuse(r)
		}
		e.mounts.setOnOpen(func(target string) error {
			if slices.ContainsFunc(bad, func(r binding.Request) bool { return r.Target == target }) {
				return errFault
			}
			return nil
		})
		e.restart()
		after(time.Minute)
		e.update(configMap("app"), "a", "2")
		e.wantFilesOf(all[6:], "a", "2")
		e.mounts.setOnOpen(func(string) error { return nil })
		e.wait(3 * testResync)
		e.wantFilesOf(bad, "a", "2")
		e.wantFilesOf(unread, "a", "1")
	})
}

// TestAMountElsewhere: the ID of a mounted volume stands for that volume.
func TestAMountElsewhere(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.restartUnread()
		elsewhere := r
		elsewhere.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.makeTarget(elsewhere)
		e.wantReason(e.p.Publish(e.ctx, elsewhere), failure.ReasonExists, "volume v1 is published already, with another target path")
		e.end(r)
	})
}

// TestAPublishComesFirst: the kubelet's own request decides, even if it comes while the API server is asked.
func TestAPublishComesFirst(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.pods.setSlow(endless)
		e.resume()
		e.publish(r)
		v := e.lookup("v1")
		e.pods.setSlow(0)
		after(time.Minute)
		if v == nil || e.lookup("v1") != v || v.wanted.request.Derived {
			t.Error("the volume was taken over once more")
		}
		e.end(r)
	})
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
