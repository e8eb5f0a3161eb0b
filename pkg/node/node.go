// Package node owns the wiring of the plugin's parts below its servers: who reads objects with whose rights, and what starts and ends in
// which order. It must not know flags, credentials, sockets or the kernel, so that the simulation runs the same wiring as the plugin.
package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/permissions"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/writer"
)

// Settings are what an operator chooses for a node. The flags of serve have the same names.
type Settings struct {
	Driver, NodeName, KubeletDir string
	// Identity is one of authz.IdentityPlugin, IdentityPod and IdentityNode.
	Identity        string
	ChangeDetection manager.ChangeDetection
	CrossNamespace  bool
	ResyncInterval  time.Duration
	DefaultSpread   time.Duration
	PublishWait     time.Duration
	// The sizes are in bytes.
	MaxVolumeSize, MaxTotalSize, MaxCachedSize int64
}

// Clients makes clients of the API server. Each client has connections of its own, and sends its requests through System.Requests.
type Clients interface {
	// Own returns a client with the plugin's own credential.
	Own() (*apiclient.Client, error)
	// WithTokens returns a client whose requests carry the tokens of pods, and no credential of the plugin.
	WithTokens(tokens *authz.Tokens) (*apiclient.Client, error)
	// AsNode returns a client whose requests carry the plugin's own credential and have the rights of a node.
	AsNode(nodeName string) (*apiclient.Client, error)
}

// System is what a node uses of the machine and of the cluster.
type System struct {
	// Client is the plugin's own client, for short requests.
	Client   *apiclient.Client
	Clients  Clients
	Requests *requests.Requests
	// Mounts, AttributePrefix, NotShared, Opens and NewWriter are as in publisher.Options.
	Mounts          publisher.Mounts
	AttributePrefix string
	NotShared       func() error
	Opens           opened.Watcher
	NewWriter       func(writer.Options) publisher.Writer
	Events          binding.Events
	Metrics         *metrics.Metrics
	LogLimit        *loglimit.Limiter
}

// Node is the parts below the servers. Its fields are constant. Start and Stop must be called by one goroutine; Stop ends all goroutines
// that Start started.
type Node struct {
	Objects *manager.Manager
	Volumes *publisher.Publisher
	Rights  *permissions.Checker

	running sync.WaitGroup
	cancel  context.CancelFunc
	err     error // the manager's; running guards it
}

// New wires the parts. It starts nothing. It fails if the settings are not valid.
func New(settings Settings, system System) (*Node, error) {
	// Watches have their own connections, here and below. On shared connections, short requests would often find them full of streams, and
	// open and drop a connection each time.
	watches, err := system.Clients.Own()
	if err != nil {
		return nil, err
	}
	w := newWiring(settings, system, watches)
	n := &Node{}
	if n.Rights, err = w.readAs(settings.Identity); err != nil {
		return nil, err
	}
	if n.Objects, err = manager.New(w.reads); err != nil {
		return nil, err
	}
	w.shows.Objects = n.Objects
	if n.Volumes, err = publisher.New(w.shows); err != nil {
		return nil, err
	}
	return n, n.show(settings, system.Metrics)
}

// newWiring gives the settings and the system on to the packages. Whose rights are used is not set yet.
func newWiring(settings Settings, system System, watches *apiclient.Client) *wiring {
	return &wiring{settings: settings, system: system, reads: manager.Options{
		Observer:        system.Metrics,
		Client:          watches,
		Requests:        system.Requests,
		Nodes:           system.Client.Nodes(),
		ResyncInterval:  settings.ResyncInterval,
		ChangeDetection: settings.ChangeDetection,
		NodeName:        settings.NodeName,
		MaxCachedSize:   settings.MaxCachedSize,
		LogLimit:        system.LogLimit,
	}, shows: publisher.Options{
		Mounts:          system.Mounts,
		NotShared:       system.NotShared,
		AttributePrefix: system.AttributePrefix,
		Opens:           system.Opens,
		NewWriter:       system.NewWriter,
		Observer:        system.Metrics,
		LogLimit:        system.LogLimit,
		NodeName:        settings.NodeName,
		PublishWait:     settings.PublishWait,
		MaxVolumeSize:   settings.MaxVolumeSize,
		MaxTotalSize:    settings.MaxTotalSize,
		Options: binding.Options{
			Pods:           pod.NewReader(func(namespace string) pod.Pods { return system.Client.Pods(namespace) }),
			Events:         system.Events,
			KubeletDir:     settings.KubeletDir,
			Driver:         settings.Driver,
			Rights:         binding.Rights{CrossNamespace: settings.CrossNamespace},
			ResyncInterval: settings.ResyncInterval,
			Reported:       settings.ChangeDetection == manager.Watch,
			DefaultSpread:  settings.DefaultSpread,
		},
	}}
}

// show lets the metrics read the parts.
func (n *Node) show(settings Settings, m *metrics.Metrics) error {
	if err := m.ShowRights(n.Rights.Rights(), n.Rights.Missing); err != nil {
		return err
	}
	return m.Show(metrics.State{
		Volumes: n.Volumes.Volumes, Objects: n.Objects.Objects, MaxBytes: settings.MaxTotalSize,
		CachedBytes: n.Objects.CachedBytes, MaxCachedBytes: settings.MaxCachedSize,
	})
}

// Start finds the volumes of an earlier process, and then serves volumes until Stop. ctx limits only the search. It fails if the mount table
// cannot be read; then nothing runs.
func (n *Node) Start(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.cancel = cancel
	n.running.Go(func() { n.err = n.Objects.Run(background) })
	if err := n.Volumes.Restore(ctx); err != nil {
		_ = n.Stop() // the manager has not failed
		return fmt.Errorf("find mounted volumes: %w", err)
	}
	n.running.Go(func() { n.Volumes.Run(background) })
	n.running.Go(func() { n.Rights.Run(background) })
	return nil
}

// Stop ends the publishes that wait, and then everything that Start started. It returns when that has ended. It is idempotent; only the
// first call returns an error.
func (n *Node) Stop() error {
	if n.cancel == nil {
		return nil
	}
	n.Volumes.StopWaiting()
	n.cancel()
	n.running.Wait()
	err := n.err
	n.cancel, n.err = nil, nil
	return err
}
