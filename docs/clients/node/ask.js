// Ask headrace one question with KafkaJS, print the tokens as they come, stop at the result.
//
//   npm install kafkajs
//   KAFKA_BROKERS=localhost:9092 node ask.js "Why is the sky blue?" [SESSION]

import { randomUUID } from 'node:crypto'
import kafkajs from 'kafkajs'

const { AssignerProtocol, Kafka, Partitioners, logLevel } = kafkajs
const NAMESPACE = process.env.NAMESPACE ?? 'headrace'
const MODEL = process.env.MODEL ?? 'smollm2-135m-instruct'
const TENANT = 'default'
const TIMEOUT_MS = 120_000
const TOKENS = `${NAMESPACE}.tokens`
const RESULTS = `${NAMESPACE}.results`

// Reading begins this long before the request was accepted: time enough for a worker that was replaced to fall silent.
const REWIND_MS = 30_000

const kafka = new Kafka({
  brokers: (process.env.KAFKA_BROKERS ?? 'localhost:9092').split(','),
  logLevel: logLevel.ERROR,
})

async function ask(text, session) {
  const request = { id: randomUUID(), model: MODEL, messages: [{ role: 'user', content: text }] }
  if (session) request.session = session
  const { partition, logAppendTime } = await send(request)
  const starts = await findStarts(partition, Number(logAppendTime) - REWIND_MS)
  return read(request.id, partition, starts)
}

// Produce the request. The acknowledgement tells its partition, and the time that the broker gave it.
async function send(request) {
  // KafkaJS's default partitioner is Kafka's (murmur2); its legacy one is not.
  const producer = kafka.producer({ idempotent: true, createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  try {
    const messages = [{ key: request.session ?? request.id, value: JSON.stringify(request) }]
    const [acknowledged] = await producer.send({ topic: `${NAMESPACE}.requests`, acks: -1, messages })
    return acknowledged
  } finally {
    await producer.disconnect()
  }
}

// The first record of each topic at or after a broker time, or the end.
async function findStarts(partition, timeMs) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    const starts = []
    for (const topic of [TOKENS, RESULTS]) {
      const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, timeMs)
      starts.push({ topic, partition, offset: offsets.find((found) => found.partition === partition).offset })
    }
    return starts
  } finally {
    await admin.disconnect()
  }
}

// KafkaJS reads only as a member of a group: ours has one member, and one partition of each topic.
const onlyPartition = (partition) => () => ({
  name: 'one-partition',
  version: 1,
  protocol: ({ topics }) => ({
    name: 'one-partition',
    metadata: AssignerProtocol.MemberMetadata.encode({ version: 1, topics, userData: Buffer.alloc(0) }),
  }),
  assign: async ({ members, topics }) =>
    members.map(({ memberId }) => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({
        version: 1,
        assignment: Object.fromEntries(topics.map((topic) => [topic, [partition]])),
        userData: Buffer.alloc(0),
      }),
    })),
})

// Print each delta that counts, and give the result.
async function read(requestId, partition, starts) {
  const consumer = kafka.consumer({
    groupId: `ask-${requestId}`,
    partitionAssigners: [onlyPartition(partition)],
    readUncommitted: false,
    maxWaitTimeInMs: 100,
  })
  const stream = new Stream(requestId)
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [TOKENS, RESULTS] })
    const result = new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`no result within ${TIMEOUT_MS / 1000} s`)), TIMEOUT_MS).unref()
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      const eachMessage = async ({ message }) => {
        const found = stream.take(JSON.parse(message.value), Number(message.offset))
        if (found) resolve(found)
      }
      consumer.run({ autoCommit: false, eachMessage }).catch(reject)
    })
    starts.forEach((start) => consumer.seek(start))
    return await result
  } finally {
    await consumer.disconnect()
  }
}

class Stream {
  #epochs = new Map() // the newest takeover of each source so far
  #nextIndex = 0
  #shown = ''

  constructor(requestId) {
    this.requestId = requestId
  }

  // Take one record of `tokens` or `results`; gives the result when it comes.
  take(record, offset) {
    if (record.schema === 'takeover/1') {
      this.#epochs.set(record.source, offset)
      return
    }
    if (record.request_id !== this.requestId || (record.tenant ?? 'default') !== TENANT) return
    if (record.schema === 'delta/1') this.#takeDelta(record)
    if (record.schema === 'result/1') return this.#finish(record)
  }

  #takeDelta(delta) {
    const isVoid = delta.epoch < (this.#epochs.get(delta.source) ?? 0)
    if (isVoid || delta.index !== this.#nextIndex) return
    const [choice] = delta.choices
    this.#show(choice.delta.content ?? '')
    // After the last delta no index fits any more.
    this.#nextIndex = choice.finish_reason ? -1 : this.#nextIndex + (delta.token_ids ?? []).length
  }

  // The result is the truth: `tokens` and `results` are two topics, and its last deltas may come behind it.
  #finish(result) {
    const text = result.choices?.[0]?.message.content ?? ''
    this.#show((text.startsWith(this.#shown) ? text.slice(this.#shown.length) : `\n${text}`) + '\n')
    return result
  }

  #show(text) {
    process.stdout.write(text)
    this.#shown += text
  }
}

const { status, usage, error } = await ask(process.argv[2], process.argv[3])
console.error(JSON.stringify({ status, usage, error }))
process.exitCode = status === 'completed' ? 0 : 1
