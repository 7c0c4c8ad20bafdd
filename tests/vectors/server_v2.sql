-- A server's database of schema version 2, as a fedcore of that version wrote it: a finished, an open, a waiting run.
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE clients (
	id INTEGER NOT NULL, 
	app_sha256 VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "clients" VALUES(1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','0.1.0');
INSERT INTO "clients" VALUES(2,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','0.1.0');
CREATE TABLE events (
	run VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	seconds DOUBLE NOT NULL, 
	time VARCHAR NOT NULL, 
	event JSON NOT NULL, 
	PRIMARY KEY (run, seq), 
	FOREIGN KEY(run) REFERENCES runs (run)
);
INSERT INTO "events" VALUES('finished',1,0.5,'2026-01-02T00:00:00+00:00','{"kind": "log", "line": "round 1"}');
INSERT INTO "events" VALUES('running',1,0.5,'2026-01-02T00:00:00+00:00','{"kind": "log", "line": "round 1"}');
INSERT INTO "events" VALUES('finished',2,9.5,'2026-01-02T00:00:00+00:00','{"kind": "ended", "status": "finished", "reason": ""}');
CREATE TABLE exchanges (
	run VARCHAR NOT NULL, 
	exchange INTEGER NOT NULL, 
	stage VARCHAR NOT NULL, 
	server_round INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	cohort JSON NOT NULL, 
	PRIMARY KEY (run, exchange), 
	FOREIGN KEY(run) REFERENCES runs (run)
);
INSERT INTO "exchanges" VALUES('finished',1,'done',1,1,'[1, 2]');
INSERT INTO "exchanges" VALUES('running',1,'share',1,1,'[1, 2]');
CREATE TABLE receipts (
	run VARCHAR NOT NULL, 
	exchange INTEGER NOT NULL, 
	step VARCHAR NOT NULL, 
	client INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	PRIMARY KEY (run, exchange, step, client)
);
INSERT INTO "receipts" VALUES('finished',1,'advertisement',2,X'0202020202020202020202020202020202020202020202020202020202020202');
INSERT INTO "receipts" VALUES('finished',1,'advertisement',1,X'0101010101010101010101010101010101010101010101010101010101010101');
INSERT INTO "receipts" VALUES('running',1,'advertisement',2,X'0202020202020202020202020202020202020202020202020202020202020202');
INSERT INTO "receipts" VALUES('running',1,'advertisement',1,X'0101010101010101010101010101010101010101010101010101010101010101');
CREATE TABLE records (
	number INTEGER NOT NULL, 
	run VARCHAR NOT NULL, 
	exchange INTEGER NOT NULL, 
	hash VARCHAR NOT NULL, 
	complete_hash VARCHAR NOT NULL, 
	unfinished_hash VARCHAR NOT NULL, 
	record JSON NOT NULL, 
	signatures JSON NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "records" VALUES(1,'finished',1,'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','{"task": {"run": "finished"}}','{"1": "AAAA"}');
CREATE TABLE runs (
	number INTEGER NOT NULL, 
	run VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	aggregation VARCHAR NOT NULL, 
	app VARCHAR NOT NULL, 
	app_sha256 VARCHAR NOT NULL, 
	run_config JSON NOT NULL, 
	settings JSON NOT NULL, 
	model_sha256 VARCHAR NOT NULL, 
	model_size INTEGER NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (run)
);
INSERT INTO "runs" VALUES(1,'finished','finished','','secure','digits','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','{"lr": 0.1}','{"min-clients": 3}','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',5000);
INSERT INTO "runs" VALUES(2,'running','running','','secure','digits','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','{"lr": 0.1}','{"min-clients": 3}','',0);
INSERT INTO "runs" VALUES(3,'waiting','waiting','','secure','digits','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','{"lr": 0.1}','{"min-clients": 3}','',0);
CREATE INDEX ix_runs_status ON runs (status);
CREATE INDEX ix_records_hash ON records (hash);
CREATE INDEX events_by_run ON events (run, seq);
COMMIT;
