package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/failure"
)

// optionalObjects returns sources that name n objects that don't exist.
func optionalObjects(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{configMap: {name: %s-%d, optional: true}},", prefix, i)
	}
	return "[" + b.String() + "]"
}

// The volumes of a pod may name 1,024 objects together, counted for each volume. A pod that has fewer is not concerned, and neither is
// another pod.
func TestAPodsObjectsAreBounded(t *testing.T) {
	inBubble(t, func(e *env) {
		all := e.inOnePod("v", 5, "sources", optionalObjects("a", 256))
		for _, r := range all[:4] {
			e.publish(r)
		}
		e.wantReason(e.p.Publish(e.ctx, all[4]), failure.ReasonInvalid,
			"Too many: the volume names 256 ConfigMaps and Secrets, the pod's other volumes 1024, and all volumes of a pod may name 1024: 0 are left; each counts once for each volume that names it: show objects in fewer volumes")
		if n := len(e.objects.registrations()); n != 4 {
			t.Errorf("%d volumes are registered", n)
		}
		e.publish(e.request("other", "sources", optionalObjects("a", 256)))
		e.publish(all[0]) // a republish
		e.unpublish(all[0])
		e.publish(all[4])
	})
}

// A directory in front of many items is refused before the paths are made. The same goes for the keys of a whole object, which the spec does
// not name: at the first publish, and for an update, which leaves the files as they are.
func TestAPodsPathsAreBounded(t *testing.T) {
	deep := strings.Repeat(strings.Repeat("a", 252)+"/", 15) + "b" // 3,796 bytes
	keys := func(n int) (pairs []string) {
		for i := range n {
			pairs = append(pairs, fmt.Sprint("k", i), "")
		}
		return pairs
	}
	inBubble(t, func(e *env) {
		var items strings.Builder
		for i := range 200 {
			fmt.Fprintf(&items, "{key: k, path: p%d},", i)
		}
		r := e.inOnePod("items", 6, "sources", "[{configMap: {name: app, path: "+deep+", optional: true, items: ["+items.String()+"]}}]")
		for _, r := range r[:5] {
			e.publish(r)
		}
		err := e.p.Publish(e.ctx, r[5])
		if e.wantReason(err, failure.ReasonInvalid, ""); !strings.Contains(err.Error(), "bytes of names and paths, the pod's other volumes 38") {
			t.Error(err)
		}

		// Nothing exists yet, so these volumes name little.
		all := e.inOnePod("whole", 6, "sources", "[{configMap: {name: whole, path: "+deep+"}}]")
		e.objects.put(configMap("whole"), keys(200)...)
		for _, r := range all[:5] {
			e.publish(r)
		}
		err = e.p.Publish(e.ctx, all[5])
		if e.wantReason(err, failure.ReasonInvalid, ""); !strings.Contains(err.Error(), "bytes of names and paths, the pod's other volumes 38") {
			t.Error(err)
		}
		e.objects.put(configMap("whole"), keys(250)...)
		e.settle()
		grown, kept := 0, 0
		for _, r := range all[:5] {
			switch n := len(e.mounts.files(r.Target)); n {
			case 250:
				grown++
				e.wantProblem(r, "")
			case 200:
				kept++
				e.wantProblem(r, "bytes of names and paths")
			default:
				t.Errorf("%d files", n)
			}
		}
		if grown == 0 || kept == 0 {
			t.Errorf("%d volumes have grown, %d were kept as they were", grown, kept)
		}
		e.objects.put(configMap("whole"), keys(100)...)
		e.settle()
		for _, r := range all[:5] {
			e.wantProblem(r, "")
		}
		e.publish(all[5])
	})
}

// A running pod that names more than the limit lives on, over republishes and restarts, and continues to be updated. New volumes of it are
// refused.
func TestAPodOverTheLimitLivesOn(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxVolumeSize, o.MaxTotalSize = 256*mebibyte, 2048*mebibyte }, func(e *env) {
		e.run()
		items := make([]string, 2500)
		for i := range items {
			items[i] = fmt.Sprintf("{key: k, path: p%d}", i)
		}
		all := e.inOnePod("v", 9, "sources", "[{configMap: {name: app, optional: true}}, {configMap: {name: none, optional: true, items: ["+strings.Join(items, ",")+"]}}]")
		e.objects.put(configMap("app"), "a", "1")
		for _, r := range all[:8] { // 20,016 items
			e.publish(r)
		}
		e.opts.MaxVolumeSize = mebibyte * 32
		e.restart()
		e.settle()
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		for _, r := range all[:8] {
			e.publish(r)
			e.wantFiles(r, "a", "2")
			e.wantProblem(r, "")
		}
		e.wantReason(e.p.Publish(e.ctx, all[8]), failure.ReasonInvalid,
			"Too many: the volume names 2502 sources, items, variables and directories, the pod's other volumes 20016, and all volumes of a pod may name 16384: 0 are left; leave out items, or show the object in fewer volumes")
	})
}
