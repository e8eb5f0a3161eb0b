package main

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/node"
	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// connections makes clients of one API server. It implements node.Clients.
type connections struct {
	config *rest.Config
	// requests paces the requests of all clients.
	requests *requests.Requests
}

// Own is newClient.
func (c connections) Own() (*apiclient.Client, error) { return newClient(c.config, c.requests) }

// WithTokens is newPodClient.
func (c connections) WithTokens(tokens *authz.Tokens) (*apiclient.Client, error) {
	return newPodClient(c.config, tokens, c.requests)
}

// AsNode is newNodeClient.
func (c connections) AsNode(nodeName string) (*apiclient.Client, error) {
	return newNodeClient(c.config, nodeName, c.requests)
}

// settings returns the settings of the node.
func (o *serveOptions) settings() (node.Settings, error) {
	sizes, err := o.sizes()
	return node.Settings{
		Driver:          o.driverName,
		NodeName:        o.nodeName,
		KubeletDir:      o.kubeletDir,
		Identity:        o.identity,
		ChangeDetection: manager.ChangeDetection(o.changeDetection),
		CrossNamespace:  o.crossNamespace,
		ResyncInterval:  o.resyncInterval,
		DefaultSpread:   o.defaultSpread,
		PublishWait:     o.publishWait,
		MaxVolumeSize:   sizes.perVolume,
		MaxTotalSize:    sizes.total,
		MaxCachedSize:   sizes.cached,
	}, err
}

// newOpens returns the watch of opened files, or nil if this kernel does not allow it. It calls lost when opens may have been missed.
func newOpens(ctx context.Context, mounter *mount.Mounter, lost func()) *receipts.Group {
	if err := probeOpens(ctx, mounter); err != nil {
		klog.FromContext(ctx).Error(err, "Opens of files can't be watched, so there are no receipts")
		return nil
	}
	return receipts.New(lost)
}

// probeOpens returns why opens of files in volumes can't be watched, or nil.
func probeOpens(ctx context.Context, mounter *mount.Mounter) error {
	v, err := mounter.Create(ctx, mount.Params{VolumeID: "probe", Size: 4096, Inodes: 8, Mode: 0o700, UID: volume.NoOwner, GID: volume.NoOwner})
	if err != nil {
		return err
	}
	dir, err := v.Root().Open(".")
	if err != nil {
		return errors.Join(err, v.Close())
	}
	err = receipts.Probe(int(dir.Fd()))
	if errors.Is(err, unix.EMFILE) { // others may hold all groups; each volume tries again
		klog.FromContext(ctx).Error(err, "Opens of files can't be watched yet")
		err = nil
	}
	return errors.Join(err, dir.Close(), v.Close())
}
