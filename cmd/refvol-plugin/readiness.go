package main

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// errNotRegistered is why the plugin is not ready before the kubelet uses it.
var errNotRegistered = errors.New("the kubelet has not registered the driver yet")

// readiness returns what makes the plugin ready: that notShared returns nil, that rights doesn't say
// what is wrong, and that the kubelet has registered the driver.
func readiness(notShared, rights func() error, registered func() bool) []condition {
	return []condition{
		{"shared-mounts", notShared},
		{"rights", rights},
		{"registration", func() error {
			if !registered() {
				return errNotRegistered
			}
			return nil
		}},
	}
}

// notShared returns propagation, which is what mount.Mounter.CheckPropagation says, if that is certain:
// pods that come to a node where that can't be told are published to. It logs either. A container's
// mounts keep their propagation, so once for each process is enough.
func notShared(ctx context.Context, propagation error) error {
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(propagation, mount.ErrNotShared):
		logger.Error(propagation, "Not ready: pods would get empty directories")
		return propagation
	case propagation != nil:
		logger.Error(propagation, "Can't tell whether volumes reach the node")
	}
	return nil
}
