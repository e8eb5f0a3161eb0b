package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// TestAPodsShare: one pod may fill an eighth of the node. To make room for a new volume, the pod's own volumes drop what they keep for
// readers, and other pods' volumes don't.
func TestAPodsShare(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxTotalSize = 16 * mebibyte }, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(100))
		e.objects.put(configMap("one"), "a", "1")
		e.objects.put(configMap("large"), "a", pages(200))
		other := e.publishNew("other", "configMap", "one")
		all := e.inOnePod("greedy", 22)
		e.publish(all[:5]...)
		e.wantReason(e.p.Publish(e.ctx, all[5]), failure.ReasonNodeFull,
			"the files and their inodes take 417792 bytes of memory, the pod's other volumes 2073600, together more than 2097152 (a pod's share: an eighth of --max-total-size, but at least --max-volume-size)")
		e.publish(e.request("tenant", "configMap", "large"))
		e.publish(e.request("fits")) // other pods are not affected

		// The readers of another pod have their second.
		e.update(configMap("one"), "a", "2")
		e.unpublish(all[4])
		mine := all[0]
		e.update(configMap("app"), "a", pages(101)) // two generations each
		last := all[6]
		last.Attributes = map[string]string{"configMap": "one"}
		e.publish(last)
		e.wantGenerations(other, 2)
		e.wantFiles(mine, "a", pages(101))
		e.wantLines(0, "Can't make room")
	})
}

// Each volume of a pod keeps a list of what it shows, so the number of volumes and of items is limited.
func TestAPodsVolumesAreBounded(t *testing.T) {
	bounded := func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.pods.show("native", volume.Source{Projection: &volume.Projection{Ref: configMap("app")}, Field: "spec.volumes[0].configMap"})
		volumes := e.inOnePod("v", volume.MaxPodVolumes+1, "volume", "native")
		e.publish(volumes[:volume.MaxPodVolumes]...)
		last := volumes[volume.MaxPodVolumes]
		e.wantReason(e.p.Publish(e.ctx, last), failure.ReasonInvalid, "the pod has 129 volumes of this driver, more than 128: show several objects in one volume")
		e.unpublish(volumes[0])
		e.publish(last)

		items := make([]volume.Item, 257)
		for i := range items {
			items[i] = volume.Item{Key: "a", Path: fmt.Sprint("p", i)}
		}
		e.pods.show("native", volume.Source{Projection: &volume.Projection{Ref: configMap("app"), Items: items}, Field: "spec.volumes[1].configMap"})
		e.wantReason(e.p.Publish(e.ctx, e.inOnePod("other", 1, "volume", "native")[0]), failure.ReasonTooLarge,
			"the volume has 257 items, more than 256: one for each page of 4096 bytes of --max-volume-size")
	}
	inBubble(t, bounded)
	asNode(t, bounded)
}

// optionalObjects returns sources that name n objects that don't exist.
func optionalObjects(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{configMap: {name: %s-%d, optional: true}},", prefix, i)
	}
	return "[" + b.String() + "]"
}

// A directory in front of many items is refused before the paths are made. The same goes for the keys of a whole object, which the spec does
// not name: at the first publish, and for an update, which leaves the files as they are.
func TestAPodsPathsAreBounded(t *testing.T) {
	deep := strings.Repeat(strings.Repeat("a", 252)+"/", 15) + "b" // 3,796 bytes
	inBubble(t, func(e *env) {
		var items strings.Builder
		for i := range 200 {
			fmt.Fprintf(&items, "{key: k, path: p%d},", i)
		}
		r := e.inOnePod("items", 6, "sources", "[{configMap: {name: app, path: "+deep+", optional: true, items: ["+items.String()+"]}}]")
		e.publish(r[:5]...)
		err := e.p.Publish(e.ctx, r[5])
		if e.wantReason(err, failure.ReasonInvalid, ""); !strings.Contains(err.Error(), "bytes of names and paths, the pod's other volumes 38") {
			t.Error(err)
		}

		// What waits for the first answer about its object counts already.
		e.objects.failWith(configMap("later"), manager.ErrNotSynced)
		var published []<-chan error
		r = e.inOnePod("waits", 6, "sources", "[{configMap: {name: later, path: "+deep+", items: ["+items.String()+"]}}]")
		for i := range 5 {
			published = append(published, e.waiting(r[i]))
		}
		e.wantReason(e.p.Publish(e.ctx, r[5]), failure.ReasonInvalid, "")
		for _, result := range published {
			e.wantReason(<-result, failure.ReasonUnavailable, "")
		}

		// Nothing exists yet, so these volumes name little.
		all := e.inOnePod("whole", 6, "sources", "[{configMap: {name: whole, path: "+deep+"}}]")
		e.objects.put(configMap("whole"), keys(200)...)
		e.publish(all[:5]...)
		err = e.p.Publish(e.ctx, all[5])
		if e.wantReason(err, failure.ReasonInvalid, ""); !strings.Contains(err.Error(), "bytes of names and paths, the pod's other volumes 38") {
			t.Error(err)
		}
		e.update(configMap("whole"), keys(250)...)
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
		e.update(configMap("whole"), keys(100)...)
		for _, r := range all[:5] {
			e.wantProblem(r, "")
		}
		e.publish(all[5])
	})
}

// A running pod that names more than the limit lives on, over republishes and restarts, and continues to be updated. New volumes of it are
// refused.
func TestAPodOverTheLimitLivesOn(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxVolumeSize, o.MaxTotalSize = 256*mebibyte, 2048*mebibyte }, func(e *env) {
		items := make([]string, 2500)
		for i := range items {
			items[i] = fmt.Sprintf("{key: k, path: p%d}", i)
		}
		all := e.inOnePod("v", 9, "sources", "[{configMap: {name: app, optional: true}}, {configMap: {name: none, optional: true, items: ["+strings.Join(items, ",")+"]}}]")
		e.objects.put(configMap("app"), "a", "1")
		e.publish(all[:8]...) // 20,016 items
		e.opts.MaxVolumeSize = mebibyte * 32
		e.resume()
		e.update(configMap("app"), "a", "2")
		for _, r := range all[:8] {
			e.publish(r)
			e.wantFiles(r, "a", "2")
			e.wantProblem(r, "")
		}
		e.wantReason(e.p.Publish(e.ctx, all[8]), failure.ReasonInvalid,
			"Too many: the volume names 2502 sources, items, variables and directories, the pod's other volumes 20016, and all volumes of a pod may name 16384: 0 are left; leave out items, or show the object in fewer volumes")
	})
}
