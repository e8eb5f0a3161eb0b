package publisher

import (
	"testing"
	"time"
)

func TestNewRefusesBadOptions(t *testing.T) {
	for _, test := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.Objects = nil }, "Objects: Required value"},
		{func(o *Options) { o.Mounts = nil }, "Mounts: Required value"},
		{func(o *Options) { o.Pods = nil }, "Pods: Required value"},
		{func(o *Options) { o.AttributePrefix = "" }, "AttributePrefix: Required value"},
		{func(o *Options) { o.NodeName = "" }, "NodeName: Required value"},
		{func(o *Options) { o.KubeletDir = "kubelet" }, `KubeletDir: Invalid value: "kubelet": must be an absolute path`},
		{func(o *Options) { o.Driver = "" }, "Driver: Required value"},
		{func(o *Options) { o.ResyncInterval = 0 }, "ResyncInterval: Invalid value: 0s: must be positive"},
		{func(o *Options) { o.PublishWait = -time.Second }, "PublishWait: Invalid value: -1s: must not be negative"},
		{func(o *Options) { o.MaxVolumeSize = 0 }, "MaxVolumeSize: Invalid value: 0: must be positive"},
		{func(o *Options) { o.MaxTotalSize = 1 }, "MaxTotalSize: Invalid value: 1: must not be less than MaxVolumeSize (4096)"},
		{func(o *Options) { o.MaxVolumeSize, o.Driver = -1, "" }, "Driver: Required value\nMaxVolumeSize: Invalid value: -1: must be positive"},
	} {
		o := Options{
			Objects: newFakeObjects(t), Mounts: newFakeMounts(t), AttributePrefix: "user.refvol.", Pods: &fakePods{}, NodeName: testNode, Driver: testDriver, KubeletDir: "/var/lib/kubelet",
			ResyncInterval: time.Second, MaxVolumeSize: 4096, MaxTotalSize: 4096,
		}
		test.change(&o)
		if _, err := New(o); err == nil || err.Error() != "publisher options: "+test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}

func TestTheKubeletsDirectoryMayBeSpelledBadly(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.KubeletDir += "/./" }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}
