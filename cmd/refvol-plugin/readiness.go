package main

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// errNotRegistered is why the plugin is not ready before the kubelet uses it.
var errNotRegistered = errors.New("the kubelet has not registered the driver yet")

// readiness returns what makes the plugin ready. propagation is what
// mount.Mounter.CheckPropagation says, which can't change as long as this process runs; it is
// logged here. Not to know it keeps nobody from being ready. identity says why nothing can be
// read.
func readiness(ctx context.Context, propagation error, identity func() error, registered func() bool) []condition {
	notShared := errors.Is(propagation, mount.ErrNotShared)
	switch {
	case notShared:
		klog.FromContext(ctx).Error(propagation, "Not ready: pods would get empty directories")
	case propagation != nil:
		klog.FromContext(ctx).Error(propagation, "Can't tell whether volumes reach the node")
	}
	return []condition{
		{"shared-mounts", func() error {
			if notShared {
				return propagation
			}
			return nil
		}},
		{"rights", identity},
		{"registration", func() error {
			if !registered() {
				return errNotRegistered
			}
			return nil
		}},
	}
}
