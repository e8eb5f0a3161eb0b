package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/pkg/loglimit"
)

// Options are the options of a Server.
type Options struct {
	DriverName string
	// Version is the plugin's version, for GetPluginInfo.
	Version string
	// NodeName is the name of the Node object.
	NodeName string
	// Endpoint is the CSI socket: unix:///path.
	Endpoint string
	// RegistrationDir is where the kubelet looks for plugins. If it is "", the driver is not registered.
	RegistrationDir string
	// KubeletSocketPath is the CSI socket's path as the kubelet sees it. "" means the path in Endpoint.
	KubeletSocketPath string
	Publisher         Publisher
	// Observe is called after each call. It may be nil.
	Observe Observer
	// LogLimit limits what is logged about each pod. If it is nil, there is no limit.
	LogLimit *loglimit.Limiter
	// Registered is called each time that the kubelet registered the driver or refused to. It must not block. It may be nil.
	Registered func(registered bool)
	// DrainTimeout limits the calls that are still running at a stop.
	DrainTimeout time.Duration
}

// Server serves the CSI socket and the registration socket.
type Server struct {
	opts         Options
	path         string
	registration *registrationServer
	refusals     refusals
}

// New returns a Server that does not serve yet. It fails if opts are not valid.
func New(opts Options) (*Server, error) {
	path, err := socketPath(opts.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("csi options: Endpoint: %w", err)
	}
	switch {
	case opts.DriverName == "" || opts.Version == "" || opts.NodeName == "" || opts.Publisher == nil:
		return nil, errors.New("csi options: DriverName, Version, NodeName, Publisher: Required value")
	case opts.DrainTimeout <= 0:
		return nil, fmt.Errorf("csi options: DrainTimeout: Invalid value: %s: must be positive", opts.DrainTimeout)
	}
	opts.KubeletSocketPath = cmp.Or(opts.KubeletSocketPath, path)
	if opts.Observe == nil {
		opts.Observe = func(string, string, time.Duration) {}
	}
	if opts.Registered == nil {
		opts.Registered = func(bool) {}
	}
	return &Server{
		opts: opts,
		path: path,
		registration: &registrationServer{
			driverName:   opts.DriverName,
			socket:       opts.KubeletSocketPath,
			onRegistered: opts.Registered,
		},
	}, nil
}

// IsReady reports whether pods on the node can use the driver: the kubelet has registered it, or no registration is configured. It is safe
// for concurrent use.
func (s *Server) IsReady() bool {
	return s.opts.RegistrationDir == "" || s.registration.registered.Load()
}

// registrationPath returns the path of the socket with which the kubelet finds the driver, or "" if the driver is not registered.
func (s *Server) registrationPath() string {
	if s.opts.RegistrationDir == "" {
		return ""
	}
	return filepath.Join(s.opts.RegistrationDir, s.opts.DriverName+"-reg.sock")
}

// Serve serves until ctx ends, then waits for running calls for at most DrainTimeout, and removes its sockets. It must be called once.
func (s *Server) Serve(ctx context.Context) error {
	services := s.newGRPC(ctx)
	csi.RegisterIdentityServer(services, &identityServer{name: s.opts.DriverName, version: s.opts.Version})
	csi.RegisterNodeServer(services, NewNodeServer(s.opts.NodeName, s.opts.Publisher))
	endpoints := []endpoint{{s.path, services}}
	if path := s.registrationPath(); path != "" {
		// The kubelet calls the CSI socket as soon as it sees this one, so it is created last.
		registrar := s.newGRPC(ctx)
		registration.RegisterRegistrationServer(registrar, s.registration)
		endpoints = append(endpoints, endpoint{path, registrar})
	}
	group, ctx := errgroup.WithContext(ctx) // if one of the two sockets fails, the other one is useless
	for _, e := range endpoints {
		listener, err := listen(ctx, e.path)
		if err != nil {
			group.Go(func() error { return err })
			break
		}
		klog.FromContext(ctx).Info("Serving", "socket", e.path)
		group.Go(func() error { return e.serve(ctx, listener, s.opts.DrainTimeout) })
	}
	return group.Wait()
}

func (s *Server) newGRPC(ctx context.Context) *grpc.Server {
	return grpc.NewServer(grpc.ChainUnaryInterceptor(logCalls(klog.FromContext(ctx), s.opts.LogLimit, s.opts.Observe, s.refusals.record), recoverPanics))
}

// endpoint is one socket and its server.
type endpoint struct {
	path   string
	server *grpc.Server
}

// serve serves on a bound socket until ctx ends and running calls have ended.
func (e endpoint) serve(ctx context.Context, listener net.Listener, drain time.Duration) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		force := time.AfterFunc(drain, e.server.Stop)
		defer force.Stop()
		e.server.GracefulStop()
	})
	err := e.server.Serve(listener)
	if !stop() {
		<-stopped
	}
	if err == nil || errors.Is(err, grpc.ErrServerStopped) { // ErrServerStopped: ctx ended before the first call could come
		return nil
	}
	return fmt.Errorf("serve at %s: %w", e.path, err)
}
