package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// probeTimeout limits the Probe of the plugin's own socket. The kubelet waits 5 s for the answer of /healthz, which uses it.
const probeTimeout = 4 * time.Second

// Probe calls the plugin's own CSI socket as the kubelet does, with a new connection. It fails if there is no answer within four seconds or
// before ctx ends, and also if the registration socket is gone, because the kubelet then forgets the driver without notifying anybody. It
// is safe for concurrent use.
func (s *Server) Probe(ctx context.Context) (err error) {
	if path := s.registrationPath(); path != "" {
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("probe the registration: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", s.path, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}); err != nil {
		return fmt.Errorf("probe %s: %w", s.path, err)
	}
	return nil
}
